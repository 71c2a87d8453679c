"""A schema from data: what is inferred is true, and the data loads into it without a bad record."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import omnigraph
from omnigraph import pipeline
from omnigraph.errors import InputFormatError, InputUnreadableError
from omnigraph.formats.inference import infer

ROWS = 40


def csv(path: Path, header: str, lines: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([header, *lines]) + "\n")


def shop(at: Path) -> None:
    """Orders refer to customers; the lines of orders are edges; a reference that may be empty stays a property."""
    countries = ("DE", "FR", "IT")
    csv(
        at / "customers.csv",
        "id,name,email,country,since",
        [f"{n},Name {n % 7},c{n}@x.org,{countries[n % 3]},20{10 + n % 9}-01-{1 + n % 28:02d}" for n in range(ROWS)],
    )
    csv(at / "products.csv", "sku,title,price", [f"P-{n:03d},Thing {n % 5},{n}.50" for n in range(10)])
    csv(
        at / "orders.csv",
        "number,customer_id,placed_at,total,paid,referrer_id",
        [
            f"{1000 + n},{n % 13},2024-05-0{1 + n % 9}T10:00:00Z,{n * 3},{n % 2 == 0},{n if n % 3 else ''}"
            for n in range(ROWS)
        ],
    )
    csv(
        at / "order_items.csv",
        "order_number,product_sku,quantity",
        [f"{1000 + n},P-{n % 10:03d},{1 + n % 4}" for n in range(ROWS)],
    )


SHOP = """\
node Customer {
    customer_id: I64 @key
    name: String
    email: String @unique
    country: enum(DE, FR, IT)
    since: Date
}

node Order {
    number: I64 @key
    placed_at: DateTime
    total: I64
    paid: Bool
    referrer_id: I64?
}

node Product {
    sku: String @key
    title: String
    price: F64
}

edge OrderItem: Order -> Product {
    quantity: I64
}

edge OrderCustomer: Order -> Customer
"""


def company(at: Path) -> None:
    """Parquet files: types come from the columns, and every employee has a department."""
    at.mkdir()
    pq.write_table(pa.table({"code": ["hr", "it", "ops"], "budget": [1.5, 2.0, None]}), at / "departments.parquet")
    rows = {
        "emp_no": pa.array(range(ROWS), pa.int32()),
        "name": [f"Name {n % 11}" for n in range(ROWS)],
        "department": [("hr", "it", "ops")[n % 3] for n in range(ROWS)],
        "manager_id": pa.array([n // 4 for n in range(ROWS)], pa.int32()),
        "hired": [dt.date(2020, 1, 1 + n % 28) for n in range(ROWS)],
    }
    pq.write_table(pa.table(rows), at / "employees.parquet")


COMPANY = """\
node Department {
    code: String @key
    budget: F64?
}

node Employee {
    emp_no: I32 @key
    name: String
    hired: Date
}

edge EmployeeDepartment: Employee -> Department

edge EmployeeManager: Employee -> Employee
"""


def network(at: Path) -> None:
    """Relations have the columns `from` and `to`; a mark with few values is an enum."""
    csv(at / "people.csv", "handle,age,mood", [f"user{n},{20 + n % 9},{('calm', 'busy')[n % 2]}" for n in range(ROWS)])
    csv(
        at / "follows.csv",
        "from,to,since",
        [f"user{n},user{(n * 7 + 1) % ROWS},2024-01-{1 + n % 28:02d}" for n in range(ROWS)],
    )


NETWORK = """\
node Person {
    handle: String @key
    age: I64
    mood: enum(busy, calm)
}

edge Follow: Person -> Person {
    since: Date
}
"""


def flights(at: Path) -> None:
    """Codes with leading zeros are texts, a type is in several files, and empty columns are texts."""
    for part in range(2):
        lines = [f"A{n:02d},{n:05d},{n}.25,," for n in range(part * 20, part * 20 + 20)]
        csv(at / f"airports-{part}.csv", "code,zip,height,remark,", lines)
    csv(at / "routes.csv", "source,target,km", [f"A{n:02d},A{(n * 3) % ROWS:02d},{n * 1.5}" for n in range(ROWS)])


FLIGHTS = """\
node Airport {
    code: String @key
    zip: String
    height: F64
    remark: String?
    value: String?
}

edge Route: Airport -> Airport {
    km: F64
}
"""


def library(at: Path) -> None:
    """JSONL: members of objects, lists, and texts that look like numbers but are texts."""
    at.mkdir()
    authors = ({"slug": f"a{n}", "born": f"19{10 + n}-02-0{1 + n % 9}"} for n in range(9))
    books = (
        {
            "isbn": f"{n:010d}",
            "author_slug": f"a{n % 9}",
            "pages": n * 3,
            "rating": n / 2,
            "tags": ["x", "y"][: n % 3],
            "size": {"width": n, "unit": ("cm", "in")[n % 2]},
            "printed": "2023-02-30" if n == 7 else "2023-02-28",
            "note": None if n % 2 else "12",
        }
        for n in range(ROWS)
    )
    for name, rows in (("authors", authors), ("books", books)):
        (at / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


LIBRARY = """\
node Author {
    slug: String @key
    born: Date
}

node Book {
    isbn: String @key
    pages: I64
    rating: F64
    tags: [String]
    size_width: I64
    size_unit: enum(cm, in)
    printed: String
    note: String?
}

edge BookAuthor: Book -> Author
"""
TRUTHS: list[tuple[Callable[[Path], None], str, dict[str, int]]] = [
    (shop, SHOP, {"Customer": 40, "Order": 40, "Product": 10, "OrderItem": 40, "OrderCustomer": 40}),
    (company, COMPANY, {"Department": 3, "Employee": 40, "EmployeeDepartment": 40, "EmployeeManager": 40}),
    (network, NETWORK, {"Person": 40, "Follow": 40}),
    (flights, FLIGHTS, {"Airport": 40, "Route": 40}),
]


@pytest.mark.parametrize("make, truth, entities", TRUTHS)
def test_the_truth_is_found_and_the_data_loads_without_a_bad_record(
    tmp_path: Path, make: Callable[[Path], None], truth: str, entities: dict[str, int]
) -> None:
    make(tmp_path / "data")

    found = infer(tmp_path / "data")

    assert found.schema == truth
    graph = omnigraph.init(tmp_path / "graph", found.schema)
    done = graph.load(tmp_path / "data", mode="append", mapping=found.mapping)
    assert {**done.nodes, **done.edges} == entities
    assert len(graph.commits()) == 2, "one commit"


@pytest.mark.parametrize(
    "make, truth, entities", [*TRUTHS, (library, LIBRARY, {"Author": 9, "Book": 40, "BookAuthor": 40})]
)
def test_the_pipeline_that_is_proposed_loads_the_data_and_loads_it_once(
    tmp_path: Path, make: Callable[[Path], None], truth: str, entities: dict[str, int]
) -> None:
    make(tmp_path / "data")

    found = infer(tmp_path / "data")

    assert found.schema == truth
    graph = omnigraph.init(tmp_path / "graph", found.schema)
    file = tmp_path / "all.yaml"
    file.write_text(found.pipeline("all", "graph", str(tmp_path)))
    pipeline.validate(file)
    done = pipeline.run(file).last
    assert done
    assert (done.status, done.rejected) == ("done", 0)
    counts = {name.partition(":")[2]: count for name, count in done.read.items()}
    assert counts == entities
    before = sorted(graph.export())
    again = pipeline.run(file, full=True).last
    assert again
    assert sorted(graph.export()) == before, "edges have ids, so none is doubled"


def test_texts_of_parquet_that_look_like_numbers_stay_texts(tmp_path: Path) -> None:
    codes = pa.table({"code": [f"{n}" for n in range(ROWS)], "at": ["2024-02-29"] * ROWS})
    pq.write_table(codes, tmp_path / "codes.parquet")

    found = infer(tmp_path / "codes.parquet")

    assert "code: String @key" in found.schema
    assert "at: Date" in found.schema
    graph = omnigraph.init(tmp_path / "graph", found.schema)
    assert graph.load(tmp_path / "codes.parquet", mode="append", mapping=found.mapping).nodes == {"Code": ROWS}


def test_the_report_says_why(tmp_path: Path) -> None:
    shop(tmp_path / "data")

    report = infer([tmp_path / "data" / "customers.csv", tmp_path / "data" / "orders.csv"]).report

    assert report[:4] == (
        "Customer: node type",
        "  id is the key: it is unique and never empty",
        "  id: I64, all 40 values are written like that",
        "  name: String, 7 different texts",
    )
    assert "  country: enum(DE, FR, IT), 40 rows have 3 values" in report
    assert "  customer_id refers to Customer: all of its values are values of Customer.id" in report
    assert "  referrer_id: I64, all 26 values are written like that, 14 are empty" in report


def test_a_reference_with_one_unknown_value_is_none(tmp_path: Path) -> None:
    shop(tmp_path / "data")
    orders = tmp_path / "data" / "orders.csv"
    orders.write_text(orders.read_text() + "2000,999,2024-05-01T10:00:00Z,1,true,\n")

    assert "OrderCustomer" not in infer(tmp_path / "data").schema


def test_files_that_cannot_be_inferred_from_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"type": "Person", "data": {"name": "ann"}}\n')
    (tmp_path / "b.csv").write_text("a,b\n1,2,3\n")

    with pytest.raises(InputFormatError):
        infer(tmp_path / "a.jsonl")
    with pytest.raises(InputUnreadableError):
        infer(tmp_path / "b.csv")
