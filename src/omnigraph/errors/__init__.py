"""Every error a user can meet: its code, what happened, what to do next, and its HTTP status.

OmnigraphError                       the root; catch this to catch everything of ours
├── CompileError                     text in one of the two languages that cannot be used; has diagnostics
│   ├── SourceError                  not usable as text at all: encoding, NUL byte, size
│   ├── SchemaError                  .pg: syntax (P1), static rules (P2-P36), catalog (C1-C5)
│   └── QueryError                   .gq: syntax (Q000), typing (T0-T24), mixed mutation (D2)
├── QueryNotFoundError               the file holds no query of that name, or no single one to default to
├── ParameterError                   a query parameter is missing or does not fit its declared type
├── LiteralError                     a text that is not a value of its type (dates, date-times)
├── IdentityError                    a value that cannot identify an entity
├── EmbedderError                    a text that should become a vector does not
│   ├── EmbedderMissingError         nothing is configured that makes vectors
│   ├── EmbedderSettingError         what is configured cannot be used
│   ├── EmbedderUnavailableError     the service does not answer, or not now
│   ├── EmbedderRefusedError         the service does not accept the request
│   ├── EmbedderAnswerError          what came back is no vector that can be used
│   ├── EmbeddingModelError          the vectors of the property are of another model
│   ├── EmbeddingTypeError           there is no such type, or none with such vectors
│   └── EmbeddingTextError           there is nothing in the text
├── LibraryMissingError              a library that a conversion needs is not installed
├── PatternError                     the pattern of a @check cannot be used
├── FileAccessError                  a file on the command line that cannot be read or written
├── InputError                       data that cannot be loaded as a whole; names the file
│   ├── InputNotFoundError           there is nothing to load
│   ├── InputFormatError             a file of a format that is not known
│   ├── InputTypeError               a file of rows of which the type is not known
│   ├── InputColumnsError            a file whose columns are not those of its type
│   ├── InputMappingError            a document that maps files to types, and cannot be used
│   ├── InputUnreadableError         a file that cannot be read, or is damaged
│   └── InputChangedError            a file that changed while it was read
├── ExportError                      an export that cannot be made as it is asked for
│   ├── ExportTypeError              there is no type of that name
│   ├── ExportTargetError            where it should go, or in which format, does not do
│   └── ExportValueError             a value that no format can hold; names the entity
├── StorageError                     the place where the graph lives cannot do what was asked
│   ├── StorageDeniedError           not permitted
│   └── StorageFullError             no space left
├── UnsupportedUriError              a graph address of an unknown kind
├── GraphNotFoundError               no graph at the address
├── NotAGraphError                   something else is at the address
├── AlreadyInitializedError          a graph is there already
├── ReadOnlyError                    a write through a handle opened read-only
├── BranchNotFoundError              no such branch
├── CommitNotFoundError              no such commit
├── TagNotFoundError                 no such tag
├── RefNameError                     a name that no branch or tag can have
├── MergeError                       two branches that cannot be merged at all
├── ResolutionError                  a resolution of conflicts that cannot be used
├── MergeConflictError               a merge whose sides contradict each other; has conflicts
├── HistoryReclaimedError            a state of the past that a cleanup removed
├── ChangeRequestError               a request for changes that names something unknown
├── ChangeCursorError                a cursor that is not one of this graph, branch and filter
├── ChangeRefusedError               a commit of which nobody can say what it changed
├── RetentionError                   a cleanup that is not told what to keep
├── RepairError                      a repair that is forced, but not confirmed
├── FormatError                      a graph written in a format this version does not work on
│   ├── FormatTooNewError            by a later version: upgrade
│   └── FormatTooOldError            by one too early to migrate from
├── CorruptGraphError                stored state that contradicts itself; nothing was changed
├── QueryKindError                   a read where a mutation is needed, or the other way round
├── PlacedError                      a query that does not suit the graph as it is; names the place in it
│   ├── ValueRejectedError           a value that does not fit the property it is for
│   └── ConstraintError              a change that would break a rule of the schema; has violations
├── LoadRejectedError                records that cannot be loaded; has violations
│   └── KeyConflictError             all of them because their ids are there already
├── SchemaUnsupportedError           a change of the schema that cannot be made
├── ResourceLimitError               more in one change than is allowed
├── PreconditionFailedError          the branch is not at the commit that the caller expects
├── OutcomeUnknownError              a change that may become visible yet, or not
├── ConflictError                    somebody else's change came first; nothing of ours is visible
│   ├── OperationDoneError           a change with an id of its own that was made before
│   ├── ExpectedVersionMismatchError a table moved since it was read
│   ├── ContentionError              too many writers at once, after all retries
│   ├── DriftError                   a table was moved by something other than Omnigraph
│   ├── SchemaDriftError             the schema files and the graph disagree
│   ├── GateTimeoutError             another writer held a lock for too long
│   ├── BranchesPresentError         something that needs a graph with main alone
│   ├── SchemaBoundaryError          something that would bring together states of different schemas
│   ├── RefExistsError               there is a branch or tag of that name
│   └── BranchInUseError             a branch from which others were made
├── RecoveryRequiredError            a write stopped half-way; its operation will be finished or undone
├── SidecarError                     a recovery record that cannot be read or acted on
├── AddressError                     a command that names no graph, or in a way that does not go with it
├── ConfigError                      a file of settings that cannot be used, or a name that is not in it
├── AliasError                       an alias that is not there, or that is called wrongly
├── OptionError                      an option of a call, such as the mode of a load, is none of those possible
├── UnauthorizedError                a request without a token that is known
├── ForbiddenError                   something that whoever asks may not do
├── TooManyRequestsError             more at once than one actor may ask for
├── LoadNotFoundError                no load of that id in the background
├── RequestTimeoutError              a request whose body comes too slowly
├── ServerStartError                 a server that does not start
├── ServerFailedError                a server that failed in a way that nobody foresaw
├── NotServedError                   something that is done where the storage is, not through a server
├── ServerUnavailableError           the server cannot be reached, or is too slow
├── ServerAnswerError                an answer that a client cannot understand
├── RequestError                     a request that a server cannot use as it was sent
│   ├── RequestShapeError            JSON that is not of the form that the route takes
│   ├── MediaTypeError               a body of a kind that the route does not take
│   ├── RouteNotFoundError           there is nothing at the address
│   └── MethodNotAllowedError        the address does not know the method
├── StoredQueryNotFoundError         no stored query of that name
├── StoredQueryBrokenError           stored queries that do not suit a schema
├── BlobPropertyError                the content of something that is no Blob property
├── BlobNotFoundError                a Blob of an entity that is not there, or that is null
├── BlobChangedError                 a Blob that is not the one that is asked for
├── BlobRangeError                   a part of a Blob that it does not have
├── JavaMissingError                 no Java, or one that is too old for Spark
└── SparkError                       Spark cannot start, or cannot finish its work
"""

from omnigraph.errors.base import (
    Diagnostic,
    OmnigraphError,
    Place,
)
from omnigraph.errors.commandline import (
    AddressError,
    AliasError,
    ConfigError,
)
from omnigraph.errors.embedding import (
    EmbedderAnswerError,
    EmbedderError,
    EmbedderMissingError,
    EmbedderRefusedError,
    EmbedderSettingError,
    EmbedderUnavailableError,
    EmbeddingModelError,
    EmbeddingTextError,
    EmbeddingTypeError,
)
from omnigraph.errors.history import (
    BranchInUseError,
    ChangeCursorError,
    ChangeRefusedError,
    ChangeRequestError,
    HistoryReclaimedError,
    MergeConflict,
    MergeConflictError,
    MergeError,
    RefExistsError,
    RefNameError,
    ResolutionError,
    SchemaBoundaryError,
    TagNotFoundError,
)
from omnigraph.errors.languages import (
    CompileError,
    FileAccessError,
    IdentityError,
    LibraryMissingError,
    LiteralError,
    ParameterError,
    PatternError,
    QueryError,
    QueryKindError,
    QueryNotFoundError,
    SchemaError,
    SourceError,
)
from omnigraph.errors.maintenance import (
    RepairError,
    RetentionError,
)
from omnigraph.errors.pipeline import (
    ExportError,
    ExportTargetError,
    ExportTypeError,
    ExportValueError,
    InputChangedError,
    InputColumnsError,
    InputError,
    InputFormatError,
    InputMappingError,
    InputNotFoundError,
    InputTypeError,
    InputUnreadableError,
    JavaMissingError,
    OptionError,
    SparkError,
)
from omnigraph.errors.requests import (
    BlobChangedError,
    BlobNotFoundError,
    BlobPropertyError,
    BlobRangeError,
    MediaTypeError,
    MethodNotAllowedError,
    RequestError,
    RequestShapeError,
    RouteNotFoundError,
    StoredQueryBrokenError,
    StoredQueryNotFoundError,
)
from omnigraph.errors.serving import (
    ForbiddenError,
    LoadNotFoundError,
    NotServedError,
    RequestTimeoutError,
    ServerAnswerError,
    ServerFailedError,
    ServerStartError,
    ServerUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from omnigraph.errors.storage import (
    AlreadyInitializedError,
    BranchNotFoundError,
    CommitNotFoundError,
    CorruptGraphError,
    FormatError,
    FormatTooNewError,
    FormatTooOldError,
    GraphNotFoundError,
    NotAGraphError,
    ReadOnlyError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    UnsupportedUriError,
)
from omnigraph.errors.writing import (
    BranchesPresentError,
    ConflictError,
    ConstraintError,
    ContentionError,
    DriftError,
    ExpectedVersionMismatchError,
    GateTimeoutError,
    KeyConflictError,
    LoadRejectedError,
    OperationDoneError,
    OutcomeUnknownError,
    PlacedError,
    PreconditionFailedError,
    RecoveryRequiredError,
    ResourceLimitError,
    SchemaDriftError,
    SchemaUnsupportedError,
    SidecarError,
    ValueRejectedError,
    Violation,
)

__all__ = [
    "AddressError",
    "AliasError",
    "AlreadyInitializedError",
    "BlobChangedError",
    "BlobNotFoundError",
    "BlobPropertyError",
    "BlobRangeError",
    "BranchInUseError",
    "BranchNotFoundError",
    "BranchesPresentError",
    "ChangeCursorError",
    "ChangeRefusedError",
    "ChangeRequestError",
    "CommitNotFoundError",
    "CompileError",
    "ConfigError",
    "ConflictError",
    "ConstraintError",
    "ContentionError",
    "CorruptGraphError",
    "Diagnostic",
    "DriftError",
    "EmbedderAnswerError",
    "EmbedderError",
    "EmbedderMissingError",
    "EmbedderRefusedError",
    "EmbedderSettingError",
    "EmbedderUnavailableError",
    "EmbeddingModelError",
    "EmbeddingTextError",
    "EmbeddingTypeError",
    "ExpectedVersionMismatchError",
    "ExportError",
    "ExportTargetError",
    "ExportTypeError",
    "ExportValueError",
    "FileAccessError",
    "ForbiddenError",
    "FormatError",
    "FormatTooNewError",
    "FormatTooOldError",
    "GateTimeoutError",
    "GraphNotFoundError",
    "HistoryReclaimedError",
    "IdentityError",
    "InputChangedError",
    "InputColumnsError",
    "InputError",
    "InputFormatError",
    "InputMappingError",
    "InputNotFoundError",
    "InputTypeError",
    "InputUnreadableError",
    "JavaMissingError",
    "KeyConflictError",
    "LibraryMissingError",
    "LiteralError",
    "LoadNotFoundError",
    "LoadRejectedError",
    "MediaTypeError",
    "MergeConflict",
    "MergeConflictError",
    "MergeError",
    "MethodNotAllowedError",
    "NotAGraphError",
    "NotServedError",
    "OmnigraphError",
    "OperationDoneError",
    "OptionError",
    "OutcomeUnknownError",
    "ParameterError",
    "PatternError",
    "Place",
    "PlacedError",
    "PreconditionFailedError",
    "QueryError",
    "QueryKindError",
    "QueryNotFoundError",
    "ReadOnlyError",
    "RecoveryRequiredError",
    "RefExistsError",
    "RefNameError",
    "RepairError",
    "RequestError",
    "RequestShapeError",
    "RequestTimeoutError",
    "ResolutionError",
    "ResourceLimitError",
    "RetentionError",
    "RouteNotFoundError",
    "SchemaBoundaryError",
    "SchemaDriftError",
    "SchemaError",
    "SchemaUnsupportedError",
    "ServerAnswerError",
    "ServerFailedError",
    "ServerStartError",
    "ServerUnavailableError",
    "SidecarError",
    "SourceError",
    "SparkError",
    "StorageDeniedError",
    "StorageError",
    "StorageFullError",
    "StoredQueryBrokenError",
    "StoredQueryNotFoundError",
    "TagNotFoundError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "UnsupportedUriError",
    "ValueRejectedError",
    "Violation",
]
