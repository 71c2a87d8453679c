"""Every error a user can meet: its code, its message, a hint, and its HTTP status.

OmnigraphError                       base class; catch it to catch every error of this library
├── CompileError                     schema or query text does not compile; has diagnostics
│   ├── SourceError                  not source text: encoding, NUL character, size
│   ├── SchemaError                  .pg: syntax (P1), static rules (P2-P36), catalog (C1-C5)
│   ├── QueryError                   .gq: syntax (Q000), typing (T0-T58), mixed mutation (D2)
│   └── PipelineFileError            the file of a pipeline (F1)
├── QueryNotFoundError               no query of that name in the source
├── QueryKindError                   a read where a mutation is expected, or the reverse
├── ParameterError                   a query parameter is missing or has the wrong type
├── LiteralError                     a text is not a value of its type (dates, date-times)
├── IdentityError                    a value cannot be the id of an entity
├── PatternError                     the regular expression of a @check cannot be used
├── PlacedError                      the query does not fit the graph; has a position in it
│   ├── ExpressionError              an expression has no value for some entity: division by zero, overflow
│   ├── ValueRejectedError           a value does not fit its property
│   └── ConstraintError              the change breaks a rule of the schema; has violations
├── LoadRejectedError                records cannot be loaded; has violations
│   └── KeyConflictError             ids of an append already exist
├── SchemaUnsupportedError           the schema change is not supported
├── ResourceLimitError               one change or read exceeds a limit
├── PreconditionFailedError          the branch is not at the expected commit
├── OutcomeUnknownError              it is not known yet whether the change took effect
├── ConflictError                    another change came first
│   ├── OperationDoneError           a change with this operation id was already made
│   ├── StreamBatchDoneError         a batch of a stream was already committed
│   ├── ExpectedVersionMismatchError a table moved since it was read
│   ├── ContentionError              too many writers at once, after all retries
│   ├── DriftError                   a table was moved by something other than Omnigraph
│   ├── SchemaDriftError             the schema files and the graph disagree
│   ├── GateTimeoutError             another writer held a lock for too long
│   ├── BranchesPresentError         the operation needs a graph with main alone
│   ├── SchemaBoundaryError          two states with different schemas cannot be combined
│   ├── RefExistsError               a branch or tag of that name exists
│   ├── RequestStateError            the merge request is merged or closed already
│   └── BranchInUseError             other branches were made from this one
├── StreamError                      a batch of a stream cannot be committed, or its branch not merged
│   ├── StreamTakenError             another query writes under the name of the stream
│   ├── StreamGapError               the batch is not the next one: a checkpoint of another graph
│   └── StreamCheckError             a check refuses the merge of the branch of a stream
├── RecoveryRequiredError            an operation was interrupted; it will be completed or undone
├── SidecarError                     a recovery record cannot be read or applied
├── BranchNotFoundError              no such branch
├── CommitNotFoundError              no such commit
├── TagNotFoundError                 no such tag
├── EntityNotFoundError              no such entity
├── RefNameError                     invalid or reserved name of a branch or tag
│   └── AmbiguousRefError            several commit ids begin with the prefix
├── BranchProtectedError             the rule of the branch does not allow the write
├── RequestNotFoundError             no such merge request
├── ApprovalRefusedError             the actor may not approve the merge request
├── CheckFailedError                 a check of a merge request found rows
├── HookError                        a hook refused the merge
├── MergeError                       two branches cannot be merged at all
├── MergeConflictError               the two sides of a merge conflict; has conflicts
├── ResolutionError                  the conflict resolution is invalid
├── ResolutionStaleError             the conflict resolution was made for another merge, or a branch has moved since
├── HistoryReclaimedError            a cleanup removed this state
├── ChangeRequestError               a request for changes names something unknown
├── ChangeCursorError                a cursor of another graph, branch or filter
├── ChangeRefusedError               the changes of this commit cannot be computed
├── RetentionError                   a cleanup without a retention rule
├── RepairError                      an invalid or unconfirmed repair
├── StorageError                     the storage failed
│   ├── StorageDeniedError           access denied
│   └── StorageFullError             no space left
├── BackupTargetError                the address cannot take a backup or a restored graph
├── BackupNotFoundError              no such backup, or none that is complete
├── BackupDamagedError               a file of a backup or of its graph is missing or different
├── UnsupportedUriError              a graph address with an unsupported scheme
├── GraphNotFoundError               no graph at the address
├── GraphReplacedError               another graph lies at the address now
├── NotAGraphError                   the address holds something else
├── AlreadyInitializedError          the address already holds a graph
├── ReadOnlyError                    a write through a read-only handle
├── ForkedHandleError                the handle was opened before a fork of the process
├── FormatError                      unsupported storage format
│   ├── FormatTooNewError            written by a later version: upgrade
│   └── FormatTooOldError            too old to be migrated
├── CorruptGraphError                the stored state is inconsistent; nothing was changed
├── OptionError                      an option of a call has an invalid value
├── LibraryMissingError              an optional library is not installed
├── JavaMissingError                 no Java, or too old for Spark
├── SparkError                       Spark did not start or did not finish
├── InputError                       the input cannot be loaded; names the file
│   ├── InputNotFoundError           nothing to load at the path
│   ├── InputFormatError             unknown file format
│   ├── InputTypeError               the type of the rows is unknown
│   ├── InputColumnsError            the columns do not match the type
│   ├── InputMappingError            invalid mapping of files to types
│   ├── InputUnreadableError         the file cannot be read, or is damaged
│   └── InputChangedError            the file changed while it was loaded
├── ExportError                      the export cannot be made as requested
│   ├── ExportTypeError              no such type
│   ├── ExportTargetError            the target cannot take the export, or not in this format
│   └── ExportValueError             a value that no format can hold; names the entity
├── EmbedderError                    a text could not be embedded
│   ├── EmbedderMissingError         no embedder is configured
│   ├── EmbedderSettingError         a setting of the embedder is invalid
│   ├── EmbedderUnavailableError     the embedding service does not respond
│   ├── EmbedderRefusedError         the embedding service rejected the request
│   ├── EmbedderAnswerError          the embedder returned an unusable vector
│   ├── EmbeddingModelError          the stored vectors come from another model
│   ├── EmbeddingTypeError           no such type, or none with embeddings
│   └── EmbeddingTextError           the text is empty
├── PipelineError                    a run of a pipeline cannot go on
│   ├── PipelineSourceError          a source cannot be read as the file says
│   ├── PipelineStateError           what was loaded is not known, or another run came first
│   └── PipelineCheckError           a check refuses the merge of the branch
├── AddressError                     a command names no graph, or not in a supported way
├── ConfigError                      a configuration file is invalid, or lacks an entry
├── AliasError                       an undefined alias, or wrong arguments for one
├── FileAccessError                  a file on the command line cannot be read or written
├── UnauthorizedError                no token, or an unknown one
├── ForbiddenError                   the caller lacks the permission
├── TooManyRequestsError             one actor has too many requests running
│   └── MemoryBusyError              other queries hold the memory for queries
├── QueryTimeoutError                the query takes longer than its time limit
├── RequestTimeoutError              the request body arrives too slowly
├── RequestError                     the request is malformed
│   ├── RequestShapeError            the JSON does not match the schema of the route
│   ├── MediaTypeError               unsupported content type
│   ├── RouteNotFoundError           no such route
│   └── MethodNotAllowedError        the route does not support the method
├── LoadNotFoundError                no such background load
├── StoredQueryNotFoundError         no such stored query
├── StoredQueryBrokenError           stored queries do not compile against a schema
├── BlobPropertyError                the property is not a Blob
├── BlobNotFoundError                no such entity, or its Blob is null
├── BlobChangedError                 the Blob is not the expected version
├── BlobRangeError                   a byte range outside the Blob
├── NotServedError                   run this where the storage is, not through a server
├── ServerUnavailableError           the server cannot be reached, or is too slow
├── ServerAnswerError                a response that a client cannot understand
├── ServerStartError                 the server cannot start
└── ServerFailedError                the server failed unexpectedly
"""

# Star imports, so that a new error is written in one place and drawn in the tree above; a test compares the two.
from omnigraph.errors.base import *  # noqa: F403
from omnigraph.errors.data import *  # noqa: F403
from omnigraph.errors.history import *  # noqa: F403
from omnigraph.errors.serving import *  # noqa: F403
from omnigraph.errors.storage import *  # noqa: F403
from omnigraph.errors.writing import *  # noqa: F403

__all__ = sorted(  # noqa: PLE0605 - computed
    name for name, value in vars().items() if isinstance(value, type) and value.__module__.startswith(__name__)
)
