"""What clients of either vocabulary look for in an answer is in its form; the fuzzer holds the answers to the forms."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

MEMBERS = """
HealthOutput: status version source_version? internal_schema_version
GraphListResponse: graphs
GraphItem: graph_id uri
SnapshotOutput: branch manifest_version tables
SnapshotOutput: graph_branch graph_manifest_version internal_schema_version datasets
TableItem: table_key table_path table_version table_branch? row_count
DatasetItem: entity_kind type_name dataset_path published_dataset_version native_dataset_branch? entity_count
SchemaOutput: schema_source
SchemaApplyOutput: uri supported applied step_count steps manifest_version graph_manifest_version
ReadOutput: query_name target row_count columns? rows graph_commit_id?
ReadTarget: branch? snapshot?
ChangeOutput: branch query_name affected_nodes affected_edges actor_id? commit?
IngestOutput: uri branch base_branch? branch_created mode tables actor_id?
IngestOutput: nodes edges total_entities total_rows commit?
GraphBatchLoadOutput: branch base_branch? branch_created mode actor_id?
GraphBatchLoadOutput: nodes edges total_entities total_rows commit?
LoadedTable: table_key rows_loaded
LoadedType: name rows_loaded entities_loaded
BranchListOutput: branches
BranchCreateOutput: uri from name actor_id?
BranchDeleteOutput: uri name actor_id?
BranchMergeOutput: source target outcome actor_id? branch_deleted? branch_delete_error?
CommitOutput: graph_commit_id manifest_branch? manifest_version parent_commit_id? merged_parent_commit_id?
CommitOutput: actor_id? created_at graph_branch? graph_manifest_version
CommitListOutput: commits
QueriesCatalogOutput: queries
QueryItem: name tool_name mutation description? instruction? params
QueryParameter: name kind item_kind? vector_dim? nullable
CommitChangesOutput: cause changes next_page_token?
ChangeFeedOutput: blocks cursor? next_page_token? caught_up
ChangeBlockOutput: cause schema? changes
Cause: graph_commit_id authored_branch authored_at parent_commit_id? merged_parent_commit_id? actor_id?
EntityChangeOutput: kind type id op before? after?
ChangedType: id name
EntityImage: properties endpoints?
ErrorOutput: error code? manifest_conflict? merge_conflicts? key_conflict? read_set_conflict?
ErrorOutput: change_diff_refusal? change_feed_gap? precondition_failure? resource_limit? blob_range? recovery_required?
"""


@pytest.fixture(scope="module")
def forms(http: httpx.Client) -> Any:
    return http.get("/openapi.json").json()["components"]["schemas"]


def test_what_clients_look_for_in_an_answer_is_there(forms: Any) -> None:
    """A name that ends with `?` may be missing from an answer, the others may not."""
    for line in MEMBERS.split("\n")[1:-1]:
        name, _, members = line.partition(": ")
        always = {member for member in members.split() if not member.endswith("?")}
        sometimes = {member.removesuffix("?") for member in members.split()} - always

        assert always <= set(forms[name].get("required", ())), name
        assert sometimes <= set(forms[name]["properties"]), name
