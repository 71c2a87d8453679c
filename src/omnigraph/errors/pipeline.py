"""Loads and exports: Spark, inputs, outputs."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class JavaMissingError(OmnigraphError):
    """Spark needs a Java that is not there; `found` is the version of the one that is, if there is one."""

    code = "java_missing"
    found: str | None


class SparkError(OmnigraphError):
    """Spark did not start, or gave up on its work; `detail` is what it says about it."""

    code = "spark_failed"
    detail: str


class OptionError(OmnigraphError):
    """An option of a call that is none of those possible, such as the mode of a load; `option` is its name."""

    code = "option_invalid"
    http_status = 400
    option: str


class InputError(OmnigraphError):
    """Data that cannot be loaded as a whole; `path` is the file, if it comes from one. Nothing was changed."""

    code = "input_invalid"
    http_status = 400
    path: str | None


class InputNotFoundError(InputError):
    """There is nothing to load at the path."""

    code = "input_not_found"


class InputFormatError(InputError):
    """The format of a file is not known."""

    code = "input_format"


class InputTypeError(InputError):
    """Which type the rows of a file are of is not known."""

    code = "input_type"


class InputColumnsError(InputError):
    """A file does not have the columns of its type; `columns` are those that it has."""

    code = "input_columns"
    columns: list[str]


class InputMappingError(InputError):
    """The document that maps files to types cannot be used."""

    code = "input_mapping"


class InputUnreadableError(InputError):
    """A file cannot be read, or is not what its name says."""

    code = "input_unreadable"


class InputChangedError(InputError):
    """A file is not the one that it was when the load began."""

    code = "input_changed"
    http_status = 409


class ExportError(OmnigraphError):
    """An export cannot be made as it is asked for."""

    code = "export_invalid"
    http_status = 400


class ExportTypeError(ExportError):
    """The graph has no type of that name."""

    code = "export_type"
    type_name: str


class ExportTargetError(ExportError):
    """The place cannot take the export, or not in this format; `path` is None for a stream."""

    code = "export_target"
    path: str | None


class ExportValueError(ExportError):
    """A stored value is one that cannot be exported, such as a number that is not finite."""

    code = "export_value"
    http_status = 500
    type_name: str
    entity_id: str
    property: str
