"""Single records at compiled speed: predicted by one vector, and learned while nothing but their count is to be noted.

An encoder reads plain records (see `data.encoder`). For any other record these say so, and the caller takes the exact
way (see `features`), which also names what is wrong. No value stays here.
"""

from libc.math cimport INFINITY, M_PI, exp, isfinite, isnan, sqrt
from libc.stdint cimport int64_t, uint64_t

import numpy as np

cimport numpy as cnp

from streamdp.data.encoder cimport RowEncoder
from streamdp.scaling.unit_table cimport CENTRE, SCALE, SINCE, TABLE, TOTAL
from streamdp.optim.record_kernel cimport LATER, LEFT_OUT, RecordGate, RecordKernel
from streamdp.privacy.arrays cimport (
    Rows,
    entry,
    matrix,
    random_words,
    rows_of,
    scratch,
    sdp_memset,
    vector,
    whole_numbers,
    wipe,
)
from streamdp.validation.answers cimport Asking

cnp.import_array()

cdef double LARGEST = 1e300  # of a linear predictor and of |x|^2


cdef class Predictor:
    """Predicts by one vector, which may change in place: single records of an encoder, and rows of its columns.

    `encoder`: what is declared about a record; None if no record is for the fast way. `theta`: (d,), or longer: a block
    of coefficients for each output, with its intercept at the end. `width`, `outputs`, `intercept`: the number p of
    columns, the number of blocks, and whether blocks have an intercept. `columns`: (2, p): the origin and the unit of
    columns, if theta is for numbers as they come, within their bounds; None if it is for the columns. `units`:
    the unit table of the columns, if `moderated` is to know the noise of theta. `ranges`: (2, p): the ends to which
    columns are cut; None if they are not. `progress`: that of the units, which tells whether a noise holds; None: there
    is none. All of them may change in place.
    """

    cdef RowEncoder _encoder
    cdef object _theta, _columns, _units, _ranges, _progress
    cdef double _low, _high, _variance, _odds, _since
    cdef const double* _at
    cdef const double* _column
    cdef const double* _unit_table
    cdef const double* _end
    cdef const double* _clock
    cdef bint _intercept
    cdef Py_ssize_t _width, _outputs

    def __init__(
        self,
        encoder,
        cnp.ndarray theta not None,
        Py_ssize_t width,
        Py_ssize_t outputs,
        bint intercept,
        columns,
        units,
        ranges,
        progress=None,
    ):
        self._progress = progress
        self._low = self._high = -INFINITY if progress is None else INFINITY  # of the clock that a noise holds for
        self._variance = self._odds = self._since = 0.0
        self._encoder, self._theta, self._columns, self._units, self._ranges = encoder, theta, columns, units, ranges
        self._width, self._outputs, self._intercept = width, outputs, intercept
        self._at = vector(theta)
        self._column = NULL if columns is None else matrix(columns)
        self._unit_table = NULL if units is None else matrix(units)
        self._end = NULL if ranges is None else matrix(ranges)
        self._clock = NULL if progress is None else vector(progress) + TOTAL
        if (
            cnp.PyArray_DIM(theta, 0) < outputs * (width + intercept)
            or (encoder is not None and self._encoder.width != width)
            or (columns is not None and columns.shape != (2, width))
            or (ranges is not None and ranges.shape != (2, width))
            or (units is not None and units.shape != (width + 1, TABLE))
        ):
            raise TypeError("the model and the record differ in their numbers of columns")

    def reads(self, theta):
        """Whether this is the array that it predicts by.

        `theta`: any array.
        """
        return self._theta is theta

    cdef inline double _shown(self, Py_ssize_t j, double value) noexcept:
        """The value of a column, cut to its range, as theta takes it."""
        if self._end != NULL:
            value = min(max(value, self._end[j]), self._end[self._width + j])
        return value if self._column == NULL else self._column[j] + self._column[self._width + j] * value

    cdef bint _predict(self, x, double* row, double* totals) except -1:
        """Write the columns of x and the linear predictors; False if the record is not for the fast way, or if one of
        them overflows."""
        return self._encoder is not None and self._encoder.fill(x, row) and self._score(row, totals)

    def cuts(self, ranges):
        """Whether these are the ranges to which it cuts columns.

        `ranges`: an array, or None.
        """
        return self._ranges is ranges

    cdef bint _score(self, const double* row, double* totals) noexcept:
        """Write the linear predictors of columns; False if one of them overflows, which is for `scores`."""
        cdef Py_ssize_t p = self._width, q = p + self._intercept, j, k
        cdef const double* at = self._at
        for k in range(self._outputs):
            totals[k] = at[p] if self._intercept else 0.0
            for j in range(p):
                totals[k] += at[j] * self._shown(j, row[j])
            if not isfinite(totals[k]):
                return False
            at += q
        return True

    def scores_of(self, x):
        """The linear predictors of one record, one for each output; None if the record is not for the fast way, or if
        one overflows.

        `x`: the record.
        """
        cdef Py_ssize_t p = self._width, k
        cdef double* row = scratch(p + self._outputs)
        try:
            return [row[p + k] for k in range(self._outputs)] if self._predict(x, row, row + p) else None
        finally:
            wipe(row, p + self._outputs)

    def know(self, noise):
        """Moderate by this noise from now on, as long as it holds.

        `noise`: a `moderation.Noise`.
        """
        self._low, self._high, self._variance, self._odds, self._since = noise

    def moderated(self, x):
        """The moderated predictor of one record; None as for `scores_of`, for several outputs, or if the known noise
        does not hold.

        `x`: the record.
        """
        cdef Py_ssize_t p = self._width
        cdef double* row
        cdef Rows record
        if self._outputs > 1 or not self._holds():
            return None
        row = scratch(p + 1)
        try:
            if not self._predict(x, row, row + p):
                return None
            record = Rows(<const char*> row, 1, p, 0, sizeof(double))
            square = self._square(&record, 0) if self._variance > 0.0 else 0.0
            return moderated(row[p], square, self._variance, self._odds)
        finally:
            wipe(row, p + 1)

    cdef inline double _square(self, const Rows* rows, Py_ssize_t i) noexcept:
        """The squared distance of a record from the centres, in units of the scales, with the constant."""
        cdef const double* unit = self._unit_table
        cdef double square = self._intercept, inner
        cdef Py_ssize_t j
        for j in range(self._width):
            inner = (entry(rows, i, j) - unit[CENTRE]) / unit[SCALE]
            square += inner * inner
            unit += TABLE
        return square

    cdef inline bint _holds(self) noexcept:
        """Whether the known noise is that of the present clock."""
        return self._clock == NULL or (
            self._low <= self._clock[0] < self._high
            and (isnan(self._since) or self._since == self._unit_table[self._width * TABLE + SINCE])
        )

    def scores(self, cnp.ndarray X not None):
        """The linear predictors (n, outputs) of rows; what overflows is the largest or the least number, or 0.

        `X`: (n, p), the columns.
        """
        cdef Py_ssize_t p = self._width, q = p + self._intercept, n = cnp.PyArray_DIM(X, 0), i, j, k
        cdef cnp.ndarray slopes = np.empty((self._outputs, p)), out
        cdef double* slope = matrix(slopes)
        cdef const double* origin = self._column
        cdef double* found
        cdef double* base = scratch(self._outputs)
        cut = None
        try:
            for k in range(self._outputs):
                base[k] = self._at[k * q + p] if self._intercept else 0.0
                for j in range(p):
                    slope[k * p + j] = self._at[k * q + j]
                    if origin != NULL:
                        base[k] += slope[k * p + j] * origin[j]
                        slope[k * p + j] *= origin[p + j]
            if self._ranges is not None and np.isfinite(self._ranges).any():
                X = cut = np.clip(X, *self._ranges)
            with np.errstate(over="ignore", invalid="ignore"):
                out = np.dot(X, slopes.T)
            found = matrix(out)
            for i in range(n):
                for k in range(self._outputs):
                    found[k] += base[k]
                    found[k] = 0.0 if isnan(found[k]) else min(max(found[k], -LARGEST), LARGEST)
                found += self._outputs
            return out
        finally:
            wipe(base, self._outputs)
            if cut is not None:
                cut[...] = 0

    def moderate(self, X, noise):
        """The linear predictors (n, outputs) of rows; of a model with one output they are moderated.

        `X`: as for `scores`. `noise`: a `moderation.Noise`.
        """
        cdef double variance = noise.variance, odds = noise.odds
        cdef cnp.ndarray scores = self.scores(X)
        cdef double* score = matrix(scores)
        cdef const double* table = self._unit_table
        cdef Py_ssize_t i
        cdef Rows rows
        if self._outputs > 1 or variance <= 0.0 or table == NULL:
            return scores
        rows_of(X, &rows)
        for i in range(rows.n):
            score[i] = moderated(score[i], self._square(&rows, i), variance, odds)
        return scores


cdef inline double moderated(double score, double square, double variance, double odds) noexcept nogil:
    """A linear predictor that is moderated for the noise of theta, as `moderation` says."""
    return odds + (score - odds) / sqrt(1.0 + M_PI / 8.0 * variance * min(square, LARGEST))


cdef class RecordLearner:
    """Learns plain records one by one, while nothing but their count has to be noted. Its caller holds the lock.

    `encoder`: what is declared about a record. `kernel`: what learns a record. `gate`: admits its subject; None: records
    have none.
    """

    cdef RowEncoder _encoder
    cdef RecordGate _gate
    cdef RecordKernel _kernel
    cdef tuple _counts, _reads
    cdef object _kept
    cdef Asking _asking
    cdef bint _also
    cdef int64_t* _seen
    cdef int64_t* _asked
    cdef int64_t* _taken
    cdef int64_t* _read
    cdef int64_t* _left
    cdef Py_ssize_t _batch, _most

    def __init__(self, RowEncoder encoder not None, RecordKernel kernel not None, RecordGate gate=None):
        if encoder.width != kernel.width:
            raise TypeError("the model and the record differ in their numbers of columns")
        self._encoder, self._kernel, self._gate = encoder, kernel, gate

    def count(self, cnp.ndarray seen not None, cnp.ndarray taken not None, Py_ssize_t batch):
        """Count records, which the kernel of a batch does not do.

        `seen`, `taken`: int64, the records learned and those of the open batch, first of all. `batch`: the number of
        records that ends the batch.
        """
        self._seen, self._taken = whole_numbers(seen), whole_numbers(taken)
        self._counts, self._batch = (seen, taken), batch

    def leave_out(self, cnp.ndarray read not None, Py_ssize_t most, cnp.ndarray left not None):
        """Count records whose subject is in the open release, and that are left out.

        `read`: (2,) int64, the records in the release and those that it has passed. `most`: how many it reads. `left`: (1,)
        int64, the records left out.
        """
        if cnp.PyArray_DIM(read, 0) != 2:
            raise TypeError("expected the records in a release and those that it has passed")
        self._read, self._left = whole_numbers(read), whole_numbers(left)
        self._reads, self._most = (read, left), most

    def ask(self, Asking asking not None, bint also, cnp.ndarray seen not None):
        """Ask records about the model before they are learned.

        `asking`: asks them. `also`: whether records that are asked are learned, too. `seen`: (1,) int64, the records that
        were learned or asked.
        """
        self._asking, self._also, self._asked, self._kept = asking, also, whole_numbers(seen), seen

    def learn(self, x, y, rng, subject):
        """Learn a record, or leave it out. False, and nothing is learned or counted, if it is not for the fast way, for
        the first and the last record of a batch, and if the random words ran out.

        `x`: the record. `y`: the target. `rng`: the random words. `subject`: whose record it is; None: nobody's.
        """
        cdef RecordKernel kernel = self._kernel
        cdef Py_ssize_t p = self._encoder.width, end = 0
        cdef uint64_t* source = NULL
        cdef cnp.ndarray words
        cdef Rows X, target
        cdef double* row
        cdef double* totals
        cdef int became
        cdef int64_t question = 0
        cdef Predictor predictor
        cdef uint64_t* answering
        cdef uint64_t two[2]
        cdef Py_ssize_t outputs = 0
        if (subject is None) != (self._gate is None):
            return False
        if self._taken != NULL and not 0 < self._taken[0] < self._batch - 1:
            return False
        if self._read != NULL and self._read[0] + self._read[1] + 1 >= self._most:
            return False
        if self._asking is not None:
            question = self._asking.next()
            if question < 0:
                return False
            if question:
                predictor = <Predictor?> self._asking.predictor
                outputs = predictor._outputs
        row = scratch(p + 1 + kernel.room + outputs)
        totals = row + p + 1 + kernel.room
        try:
            if not self._encoder.target(y, row + p) or not self._encoder.fill(x, row):
                return False
            if kernel.draws:
                words = rng.words
                source, end = random_words(words), cnp.PyArray_DIM(words, 0)
            if question:  # before anything is charged or learned: then nothing can be missing
                answering = self._asking.words(two)
                if answering == NULL or not predictor._score(row, totals):
                    return False
            X = Rows(<const char*> row, 1, p, 0, sizeof(double))
            target = Rows(<const char*> (row + p), 1, 1, 0, 0)
            if self._gate is not None:
                became = self._gate.admit(subject)
                if became == LEFT_OUT:
                    self._read[1] += 1
                    self._left[0] += 1
                    return True
                if became == LATER:
                    return False
            if (question and not self._also) or kernel.learn(&X, &target, row + p + 1, source, end):
                if self._taken != NULL:
                    self._taken[0] += 1
                    self._seen[0] += 1
                elif question and not self._also:
                    self._asked[0] += 1
                if question:
                    self._asking.answer(question, totals, outputs, row[p], answering)
                elif self._asking is not None:
                    self._asking.passed()
                return True
            if self._gate is not None:
                self._gate.undo()
            return False
        finally:
            sdp_memset(two, 0, sizeof(two))
            wipe(row, p + 1 + kernel.room + outputs)
