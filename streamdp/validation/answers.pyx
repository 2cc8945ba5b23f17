"""What a record says about a model, and one randomised answer about it: the mechanism of private validation.

A record is asked for a number v in [-1, 1], such as its scaled error. v is rounded at random to -1 or 1, so that the
mean stays v. The answer names this end with probability t = e^eps/(1 + e^eps), else the other one. The released value
is the answer times a = 1/(2 t - 1), so its mean is v and its variance a^2 - v^2.

Neighbours: replace one record. Trust: nobody if a person answers on their own side; here the process that calls
`learn_one`. Claim: the answer keeps eps-DP for its record, against everyone who sees every answer; mu-GDP with t =
Phi(mu/2); with (eps, delta), the delta is not used.

Proof, shares and budgets of their own, comparison with a constant: docs/proofs/validation.md.
"""

from libc.math cimport INFINITY, exp, floor, fmod, log, pow, rint, sqrt
from libc.stdint cimport int64_t, uint64_t

import numpy as np

cimport numpy as cnp

from streamdp.privacy.arrays cimport matrix, random_words, sdp_memset, vector, whole_numbers, word_matrix
from streamdp.privacy.fresh cimport fresh_words

cnp.import_array()

cdef double GRID = 9007199254740992.0  # 2^53
cdef double LOG_MOST = 700.0  # its exponential is within the doubles
cdef double FAR = 1e9  # scores are cut here, so that they can be subtracted
cdef double GOLDEN = (sqrt(5) - 1) / 2
cdef double GAIN = 0.15, DECAY = 0.6
# The forms of `Errors`; then as in `sums` and `validator`.
cdef enum:
    PINBALL, SQUARED, WRONG, LOG_LOSS
    ERRORS = 0, RANGE = 3, OTHERS = 4, ANSWERS = 7, CELLS = 8, NOISE = 9, COLUMNS = 10
    CONSTANTS = 3, INFORMATION = 4
    GROUPS = 16, MOST = 20  # the groups of numbers, and the most numbers of a vector


PARTS = GROUPS
"""The intervals in which held-out numbers are counted, to find the constant."""
cdef double NARROW = 1e-290  # the least width of all of them
FORMS = ("pinball loss", "squared error", "wrong class", "log loss")
"""What an error may be."""


cpdef inline double truthful(double keep) noexcept:
    """The probability of a true answer that is used, a multiple of 2^-53.

    `keep`: that of `mechanisms.response.truth`, above 1/2.
    """
    return floor(keep * GRID) / GRID


cdef inline double uniform(uint64_t word) noexcept:
    return <double> (word >> 11) / GRID


cdef inline double answered(double value, double keep, const uint64_t* words) noexcept:
    """An unbiased randomised answer about a value in [-1, 1], by two random words."""
    cdef double t = truthful(keep), a = 1 / (2 * t - 1)
    return a if (2 * uniform(words[0]) - 1 < value) == (uniform(words[1]) < t) else -a


cdef inline double clipped(double value, double low, double high) noexcept:
    return low if value < low else high if value > high else value


cdef inline int parity(Py_ssize_t bits) noexcept:
    """-1 for an odd number of bits, else 1."""
    cdef int found = 1
    while bits:
        found, bits = -found, bits & (bits - 1)
    return found


cdef class Errors:
    """What records say about a model while what is known of the constant is fixed: see `tasks`.

    `form`: of `FORMS`. `numbers`: for numbers the level tau, the factor of
    the loss, the bounds, the largest distance, the constant, the threshold of the bits about it, and whether scores are
    logarithms of predictions; for classes the largest
    distance of log-odds from their middle, the class that is predicted without a model, the expected excess, and the range
    of the log loss. `shares`: (K,), those of the
    classes; empty for numbers. `cells`: how many cells there are. `ends`: (7,), the scores that separate these.
    """

    def __init__(self, form, numbers, cnp.ndarray shares not None, Py_ssize_t cells, cnp.ndarray ends not None):
        logs = np.log(shares)
        self._given = (form, numbers, shares, cells, ends, logs)
        self._form, self._cells, self._classes = FORMS.index(form), cells, cnp.PyArray_DIM(shares, 0)
        self._share, self._log, self._end = vector(shares), vector(logs), vector(ends)
        self.rounds = self._form == SQUARED
        if self._classes:
            self._reach, self._usual, self._excess, self._least, self._most = numbers
        else:
            self._tau, self._unit, self._low, self._high, self._reach, self._constant, self._threshold, self._exp = numbers
            self._least = 0
            self._most = self._reach**2 if self._form == SQUARED else self._unit * max(self._tau, 1 - self._tau) * self._reach

    def __reduce__(self):
        return Errors, self._given[:5]

    cdef double _bound(self, bint other, bint high) noexcept:
        """An end of the range of a value."""
        if self._form == LOG_LOSS and not other:
            return self._most if high else self._least
        if self._classes:
            return high
        return self._most if high else 0

    cdef double _value(self, bint other, const double* scores, Py_ssize_t outputs, double y) noexcept:
        """What a record says about the model, or about what stands beside it."""
        cdef Py_ssize_t k, best = 0, label = <Py_ssize_t> y
        cdef double found, r, least = INFINITY, most = -INFINITY, middle, total = 0, own = 0
        if not self._classes:
            found = exp(min(scores[0], LOG_MOST)) if self._exp else scores[0]
            found = clipped(y, self._low, self._high) - (self._constant if other else found)
            if self._form == SQUARED:
                found = clipped(found, -self._reach, self._reach)
                return found * found
            return min(max(self._tau * found, (self._tau - 1) * found) * self._unit, self._most)
        if self._form == WRONG and other:
            return self._usual != label
        if self._form == WRONG or other:
            if outputs == 1:
                return (scores[0] > 0) != label
            for k in range(1, outputs):
                if scores[k] > scores[best]:
                    best = k
            return best != label
        for k in range(self._classes):
            r = self._odds(scores, outputs, k)
            least, most = min(least, r), max(most, r)
        middle = (least + most) / 2
        for k in range(self._classes):
            r = clipped(self._odds(scores, outputs, k) - middle, -self._reach, self._reach)
            total += self._share[k] * exp(r)
            if k == label:
                own = r
        return clipped(log(total) - own + self._excess, self._least, self._most)

    cdef double _odds(self, const double* scores, Py_ssize_t outputs, Py_ssize_t k) noexcept:
        if outputs > 1:
            return clipped(scores[k], -FAR, FAR) - self._log[k]
        return (clipped(scores[0], -FAR, FAR) if k else 0) - self._log[k]

    cdef int64_t _group(self, double y, const double* known, uint64_t word) noexcept:
        """The group of a target, which is counted to find the constant; a place of a mean is rounded at random."""
        cdef double place
        if self._classes:
            return <int64_t> y
        place = (y - known[0]) * ((GROUPS - (self._form == SQUARED)) / max(known[1] - known[0], NARROW))
        place = clipped(place, 0, GROUPS - 1)
        return min(<int64_t> (place + uniform(word) if self._form == SQUARED else place), GROUPS - 1)

    cdef Py_ssize_t _cell(self, double score, double y) noexcept:
        cdef Py_ssize_t found = 0
        while found < 7 and self._end[found] < score:
            found += 1
        return found + 8 * <Py_ssize_t> y

    def range(self, bint other):
        """The least and the largest value.

        `other`: whether they are about what stands beside the model, and not about the model.
        """
        return self._bound(other, False), self._bound(other, True)

    def vectors(self, weights, double cell, cnp.ndarray scores not None, cnp.ndarray y not None):
        """What records add to a sum, (n, 4 + cells): both values u, scaled to [-1, 1], as (u, u^2), and the cell.

        `weights`: those of the two. `cell`: what stands in one of the cells. `scores`: (n, K). `y`: (n,).
        """
        cdef Py_ssize_t n = cnp.PyArray_DIM(y, 0), outputs = cnp.PyArray_DIM(scores, 1), size = 4 + self._cells, i
        cdef cnp.ndarray out = np.zeros((n, size))
        cdef double* found = matrix(out)
        cdef const double* score = matrix(scores)
        cdef const double* target = vector(y)
        cdef double weight[2]
        weight[0], weight[1] = weights
        for i in range(n):
            self._vector(weight, cell, score + i * outputs, outputs, target[i], found + i * size)
        return out

    cdef void _vector(
        self, const double* weight, double cell, const double* score, Py_ssize_t outputs, double y, double* found
    ) noexcept:
        """Write what a record adds to a sum to zeros."""
        cdef double low, high, u
        cdef Py_ssize_t j
        for j in range(2):
            low, high = self._bound(j, False), self._bound(j, True)
            u = (2 * self._value(j, score, outputs, y) - low - high) / (high - low)
            found[2 * j], found[2 * j + 1] = weight[j] * u, weight[j] * u * u
        if self._cells:
            found[4 + self._cell(score[0], y)] = cell

    def groups(self, cnp.ndarray y not None, cnp.ndarray known not None, cnp.ndarray words not None):
        """The groups (n,) of targets y (n,), which are counted to find the constant.

        `known`: what is known of it; see `tasks`. `words`: (n,), random, for the mean of numbers; else they may be fewer.
        """
        cdef Py_ssize_t n = cnp.PyArray_DIM(y, 0), given = cnp.PyArray_DIM(words, 0), i
        cdef cnp.ndarray out = np.empty(n, dtype=np.int64)
        cdef int64_t* found = whole_numbers(out)
        cdef const double* target = vector(y)
        cdef const double* ends = vector(known)
        cdef const uint64_t* word = random_words(words)
        if self.rounds and given < n:
            raise TypeError("expected a random word for each target")
        for i in range(n):
            found[i] = self._group(target[i], ends, word[i] if i < given else 0)
        return out

    def answer(
        self,
        cnp.ndarray asked not None,
        cnp.ndarray scores not None,
        cnp.ndarray y not None,
        cnp.ndarray keep not None,
        cnp.ndarray words not None,
        cnp.ndarray sums not None,
        cnp.ndarray progress not None,
        cnp.ndarray known not None,
    ):
        """Add the randomised answers of records to sums and to what is known; words are overwritten with zeros.

        `asked`: (n,) int64, something. `scores`, `y`: as for `vectors`. `keep`: (n,) or (1,), as for `truthful`.
        `words`: (n, 2), of `draw`. `sums`, `progress`, `known`: as `Validator` has them; they are changed.
        """
        cdef Py_ssize_t n = cnp.PyArray_DIM(y, 0), outputs = cnp.PyArray_DIM(scores, 1), i
        cdef const int64_t* question = whole_numbers(asked)
        cdef const double* score = matrix(scores)
        cdef const double* target = vector(y)
        cdef const double* kept = vector(keep)
        cdef bint each = cnp.PyArray_DIM(keep, 0) > 1
        cdef uint64_t* word = word_matrix(words)
        cdef double* total = vector(sums)
        cdef double* done = vector(progress)
        cdef double* learned = vector(known)
        for i in range(n):
            self._answer(question[i], score, outputs, target[i], kept[0], word, total, done, learned)
            word[0] = word[1] = 0
            word += 2
            score += outputs
            kept += each

    cdef void _answer(
        self,
        int64_t question,
        const double* score,
        Py_ssize_t outputs,
        double y,
        double keep,
        const uint64_t* word,
        double* total,
        double* done,
        double* known,
    ) noexcept:
        """Add the answer of one record, with two words."""
        cdef bint other = question == OTHER
        cdef double low, half, noisy
        total[ANSWERS] += 1
        if question == CONSTANT:
            self._learn_constant(y, keep, word, done, known)
        elif question == ERROR or other:
            low = self._bound(other, False)
            half = (self._bound(other, True) - low) / 2
            noisy = (self._value(other, score, outputs, y) - (low + half)) / half
            noisy = answered(noisy, keep, word) * half + (low + half)
            _add(total + (OTHERS if other else ERRORS), noisy)
            if not other:
                total[RANGE] += (half / (2 * truthful(keep) - 1)) ** 2
        else:
            self._say_cell(self._cell(score[0], y), keep, word, total)

    cdef void _say_cell(self, Py_ssize_t cell, double keep, const uint64_t* word, double* total) noexcept:
        """Ask for one random coordinate of the Walsh transform of a record's cell, other than the first."""
        cdef Py_ssize_t count = self._cells, row = 1 + <Py_ssize_t> (word[0] % <uint64_t> (count - 1)), c
        cdef double noisy = answered(parity(row & cell), keep, word) * (count - 1)
        total[CELLS] += 1
        total[NOISE] += noisy * noisy / (count * (count - 1))
        for c in range(count):
            total[COLUMNS + c] += (noisy * parity(row & c) + 1) / count

    cdef void _learn_constant(
        self, double y, double keep, const uint64_t* word, double* done, double* known
    ) noexcept:
        """Ask one bit about the constant, and learn from the answer."""
        cdef double t = done[CONSTANTS], level, noisy
        cdef Py_ssize_t k
        done[CONSTANTS] += 1
        done[INFORMATION] += (2 * keep - 1) ** 2
        if self._classes:
            k = <Py_ssize_t> fmod(t, <double> self._classes)
            noisy = answered(1 if y == k else -1, keep, word)
            known[k] += 1
            known[self._classes + k] += noisy
            known[2 * self._classes + k] += noisy * noisy
            return
        y = clipped(y, self._low, self._high)
        if self._form == SQUARED:
            level = self._low + (self._high - self._low) * fmod((t + 1) * GOLDEN, 1)
            noisy = answered(1 if y <= level else -1, keep, word)
            known[1] += 1
            known[2] += (self._high - (self._high - self._low) * (1 + noisy) / 2 - known[2]) / known[1]
            known[0] = known[2]
            return
        noisy = answered(1 if y <= self._threshold else -1, keep, word)
        t += 20
        known[0] += GAIN * self._reach * pow(t, -DECAY) * (2 * self._tau - 1 - noisy)
        known[0] = clipped(known[0], self._low, self._high)
        known[1] += t
        known[2] += t / known[1] * (known[0] - known[2])


cdef inline void _add(double* place, double noisy) noexcept:
    place[0] += 1
    place[1] += noisy
    place[2] += noisy * noisy


cdef class Asking:
    """Asks single records what a block asks them, for a compiled learner: what `Validator` does with one record.

    It asks nobody before `look`, and in a copy.
    """

    def __reduce__(self):
        return Asking, ()

    def look(
        self,
        predictor,
        double keep,
        rng,
        Errors errors not None,
        cnp.ndarray questions not None,
        cnp.ndarray quiet not None,
        cnp.ndarray sums not None,
        cnp.ndarray progress not None,
        cnp.ndarray known not None,
    ):
        """Ask from now on by these, which are changed in place.

        `predictor`: predicts by the point of the block. `keep`: as for `truthful`. `rng`: the random words. `questions`:
        (n,) int64, what the next records are asked. `quiet`: (2,) int64, how many of them came, and may come. `errors`,
        `sums`, `progress`, `known`: as `Validator` has them.
        """
        self.predictor, self._rng, self._errors, self._keep = predictor, rng, errors, keep
        self._buffered = hasattr(rng, "words")
        self._question, self._quiet = whole_numbers(questions), whole_numbers(quiet)
        self._total, self._done, self._known = vector(sums), vector(progress), vector(known)
        self._kept = questions, quiet, sums, progress, known

    cdef int64_t next(self) noexcept:
        """What the next record is asked; -1 if its caller must ask it another way."""
        return -1 if self._quiet == NULL or self._quiet[0] >= self._quiet[1] else self._question[self._quiet[0]]

    cdef void passed(self) noexcept:
        """Move past the record."""
        self._quiet[0] += 1

    cdef uint64_t* words(self, uint64_t* room) except? NULL:
        """Two random words, maybe in a `room` for two. NULL if the buffer must be filled first."""
        cdef cnp.ndarray words
        cdef uint64_t* found
        cdef uint64_t at
        if not self._buffered:
            return room if fresh_words(room, 2) else NULL
        words = self._rng.words
        found = random_words(words)
        at = found[0]
        if at + 2 > <uint64_t> cnp.PyArray_DIM(words, 0) or not found[at] or not found[at + 1]:
            return NULL  # a word that is zero may have been used
        return found + at

    cdef void answer(
        self, int64_t question, const double* scores, Py_ssize_t outputs, double y, uint64_t* words
    ) except *:
        """Add the answer of the record, with `words` that are overwritten with zeros, and move past it."""
        cdef uint64_t used[2]
        used[0], used[1] = words[0], words[1]
        words[0] = words[1] = 0
        if self._buffered:
            random_words(self._rng.words)[0] += 2
        self._quiet[0] += 1
        self._errors._answer(
            question, scores, outputs, y, self._keep, used, self._total, self._done, self._known
        )
        sdp_memset(used, 0, sizeof(used))


cdef class Adding(Asking):
    """As `Asking`, for the sums of a block: what `HeldOut.add` does with one record."""

    def __reduce__(self):
        return Adding, ()

    def sum(
        self,
        predictor,
        Errors errors not None,
        cnp.ndarray questions not None,
        cnp.ndarray quiet not None,
        cnp.ndarray known not None,
        weights,
        double cell,
        counts,
        scores,
    ):
        """Ask from now on by these, and add to the sums.

        `predictor`, `errors`, `questions`, `quiet`, `known`: as for `look`. `weights`, `cell`: as for `Errors.vectors`.
        `counts`, `scores`: the sums of groups and of vectors, int64, each with the cells of its grid in 1; None for one
        without a vector.
        """
        self.predictor, self._errors, self._cell = predictor, errors, cell
        self._question, self._quiet, self._known = whole_numbers(questions), whole_numbers(quiet), vector(known)
        self._kept, self._count, self._score = (questions, quiet, known, counts, scores), NULL, NULL
        self._weight[0], self._weight[1] = weights
        if counts is not None:
            self._count, self._one = whole_numbers(counts[0]), <int64_t> rint(counts[1])
        if scores is not None:
            self._score, self._grid = whole_numbers(scores[0]), scores[1]
            if len(scores[0]) != 4 + errors._cells or 4 + errors._cells > MOST:
                raise TypeError("expected a sum for each number of a vector")

    cdef int64_t next(self) noexcept:
        cdef int64_t question = Asking.next(self)
        if (question == CONSTANT and self._count == NULL) or (question > CONSTANT and self._score == NULL):
            return -1  # its sum is not begun
        return question

    cdef uint64_t* words(self, uint64_t* room) except? NULL:
        room[0] = 0
        return room if not self._errors.rounds or fresh_words(room, 1) else NULL

    cdef void answer(
        self, int64_t question, const double* scores, Py_ssize_t outputs, double y, uint64_t* words
    ) except *:
        cdef double found[MOST]
        cdef Py_ssize_t j
        if question == CONSTANT:
            self._count[self._errors._group(y, self._known, words[0])] += self._one
        else:
            sdp_memset(found, 0, sizeof(found))
            self._errors._vector(self._weight, self._cell, scores, outputs, y, found)
            for j in range(4 + self._errors._cells):
                self._score[j] += <int64_t> rint(found[j] * self._grid)
            sdp_memset(found, 0, sizeof(found))
        words[0] = 0
        self._quiet[0] += 1
