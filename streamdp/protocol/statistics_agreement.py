"""What people agree to before they report about statistics: schema, statistics and budget. See docs/reports.md.

The noise follows from the budget and the number of cells; `learners.drawn` owns it, in a process as on a device.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from streamdp.config.definition import Definition
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError
from streamdp.estimators.declared import MOST_CELLS, Declared
from streamdp.estimators.statistics import Statistics
from streamdp.learners.cells import Cells, Index, Values, bins, crossed, levels
from streamdp.learners.hitters import Hitters
from streamdp.learners.local_counts import CellReports, ReportPart
from streamdp.learners.local_roots import Roots
from streamdp.privacy.guarantees import parse_budget
from streamdp.privacy.mechanisms.response import epsilon_of
from streamdp.protocol.local_agreement import (
    PROTOCOL,
    Agreed,
    Category,
    Name,
    Number,
    Subject,
    Transformed,
    Wire,
    check_plain,
    checked,
    declared_of,
    on_the_wire,
    whole,
)

_MOST_STATISTICS = 200


class Text(Wire):
    """A feature that is a text of an open domain."""

    name: Name
    text: Annotated[int, Field(ge=1, le=64), BeforeValidator(whole)]  # how many bytes of it are reported


class CodedSchema(Wire):
    """The declared public features that the statistics read."""

    features: list[Number | Category | Text | Transformed] = Field(min_length=1, max_length=1000)
    subject: Subject

    def build(self) -> Schema:
        """The encoder of records. Raises `SchemaError` for contradictions, `ConfigError` for unusable bounds."""
        from streamdp.data.schema import Schema

        for feature in self.features:
            if isinstance(feature, Transformed) and (feature.bounds is None or feature.knots is not None):
                raise ConfigError("refused: expected numbers with bounds, and no other transforms")
        return checked(Schema(declared_of(self.features), coded=True))


class Sorter(Wire):
    """A feature by which records are sorted into cells."""

    column: Name
    # the inner edges of bins of a number, in units of its bounds, [-1, 1]; None: by the categories
    edges: list[Annotated[float, Field(ge=-1, le=1)]] | None = Field(min_length=1, max_length=MOST_CELLS)

    def build(self, schema: Schema) -> Index:
        """What sorts rows. Raises `ConfigError` for what does not fit the schema."""
        column, kinds = _column(schema, self.column, "categories" if self.edges is None else "number")
        if self.edges is None:
            return levels(column, kinds)
        if sorted(self.edges) != self.edges:
            raise ConfigError("refused: expected ascending edges")
        return bins(column, (-1.0, *self.edges, 1.0))


class WireStatistic(Wire):
    """What a part of the records reports about."""

    name: Name
    kind: Literal["mean", "sum", "count", "proportion", "histogram", "quantile", "heavy_hitters"]
    share: float = Field(gt=0, le=1)  # of the records
    by: list[Sorter] = Field(max_length=100)  # the cells, or the groups of a number; the last one changes first
    of: Name | None  # a number, or a text of heavy hitters; None: cells are counted
    # how many levels, at equal distances, a number is rounded to at random, for means and sums
    levels: Annotated[int, Field(ge=2, le=17), BeforeValidator(whole)] | None
    quantile: float | None = Field(gt=0, lt=1)

    def build(self, schema: Schema, epsilon: float) -> ReportPart:
        """What makes the reports, and adds them up. Raises `ConfigError` for what does not fit the schema."""
        number, rounded = self.kind in ("mean", "sum", "quantile"), self.kind in ("mean", "sum")
        given = self.of is not None, self.levels is not None, self.quantile is not None
        text = self.kind == "heavy_hitters"
        if given != (number or text, rounded, number and not rounded) or (text and self.by):
            raise ConfigError("refused: expected what belongs to a statistic of this kind, and nothing else")
        if text:
            column, length = _column(schema, self.of, "text")
            return Hitters(range(column, column + length), epsilon)
        groups = crossed([sorter.build(schema) for sorter in self.by])
        if groups.count * (self.levels or 2) > 2 * MOST_CELLS:
            raise ConfigError(f"refused: expected at most {MOST_CELLS} cells")
        if not number:
            return CellReports(Cells(Index(), groups), epsilon)
        column, _ = _column(schema, self.of, "number")
        if self.quantile is not None:
            return Roots(groups, column, self.quantile, epsilon)
        return CellReports(Values(groups, column), epsilon, self.levels)


def _column(schema: Schema, name: str | None, kind: str) -> tuple[int, int]:
    """The first column of a feature of this kind, and the number of its categories or of its bytes."""
    at = 0
    for feature, declared in schema.declarations.items():
        if feature != name:
            at += len(declared.pieces)
            continue
        single = declared.is_number and len(declared.pieces) == 1
        size = {"number": int(single), "categories": len(declared.codes and declared.values), "text": declared.length}
        if size[kind]:
            return at, size[kind]
    raise ConfigError(f"refused: expected statistics of the features of the schema, and here one with {kind}")


class StatisticsAgreement(Agreed):
    """The agreement of a job with statistics."""

    schema_: CodedSchema = Field(alias="schema")
    statistics: list[WireStatistic] = Field(min_length=1, max_length=_MOST_STATISTICS)

    @classmethod
    def of(cls, job: str, definition: Definition) -> "StatisticsAgreement":
        """The agreement of a `job`. Raises `ConfigError` if devices cannot report to it."""
        statistics = definition.build_estimator()
        if not isinstance(statistics, Statistics) or not statistics.takes_reports:
            raise ConfigError("these statistics take no reports: expected trust: nobody, and no quantiles with every")
        built, declared, subject = check_plain(definition), definition.schema_.declared(), definition.schema_.subject
        names = [name for name, feature in built.declarations.items() for _ in feature.pieces]
        found = [_written(one, part, share, names) for one, part, share in statistics.reported()]
        read = {each["of"] for each in found} | {sorter["column"] for each in found for sorter in each["by"]}
        features = [on_the_wire(built, name, given) for name, given in declared.items() if name in read]
        schema = {"features": features, "subject": None if subject is None else built.subject_type}
        agreed = {"protocol": PROTOCOL, "job": job, "schema": schema, "statistics": found}
        return cls.model_validate(agreed | {"budget": str(statistics.record_budget)})

    def parts(self) -> list[tuple[ReportPart, float]]:
        """What makes the reports, with the shares of records. Raises `ConfigError`, `SchemaError` and `BudgetError`."""
        schema, epsilon = self.schema_.build(), epsilon_of(parse_budget(self.budget))
        return [(one.build(schema, epsilon), one.share) for one in self.statistics]


def _written(one: Declared, part: ReportPart, share: float, names: Sequence[str]) -> dict[str, Any]:
    """A part of a job's statistics as a device gets it; `names` has the feature of each column."""
    found = {"of": None if one.of_cells else one.of, "levels": len(part.levels) or None, "quantile": part.q}
    by = [
        {"column": names[column], "edges": None if edges is None else [*edges]}
        for column, _, edges in part.groups.sorters
    ]
    return {"name": one.name, "kind": one.kind, "share": share, "by": by} | found
