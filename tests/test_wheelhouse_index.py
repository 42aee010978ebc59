"""The static index: what its pages say, that they never name a wheel that is gone or another, and stale ones go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urldefrag

import pytest
from records import STACK, make, readable, title_of

from archpatch.storage.atomic import sha256_of
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.record import Record, record_path
from archpatch.wheelhouse.verify import verify

OTHER = Stack(torch="2.13.0+cu130", cuda="13.0")
H200 = PurePosixPath("index/h200/torch2.14.1-cu130")


class Page(HTMLParser):
    """A page's links, its cells, and whether every element was closed."""

    VOID = ("br", "meta", "!doctype")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "a":
            self.links.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] if data.strip() else []


def publish(
    house: Wheelhouse, tmp_path: Path, *, headers: tuple[str, ...] = ("Requires-Python: >=3.10",), **what: object
) -> Entry:
    wheel, record = made(tmp_path, headers=headers, **what)
    return house.publish(wheel, record, what.get("stack", STACK))


def made(tmp_path: Path, *, headers: tuple[str, ...] = (), **what: object) -> tuple[Path, Record]:
    title = title_of(**{name: what[name] for name in ("name", "codes", "version", "stack") if name in what})
    return make(tmp_path / "made", content=readable(title, *headers), **what)


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


@pytest.fixture
def entry(house: Wheelhouse, tmp_path: Path) -> Entry:
    """One wheel, filed for the H200, in a house with an index."""
    entry = publish(house, tmp_path)
    house.offer(entry, "h200", STACK)
    house.write_index()
    return entry


def pages(house: Wheelhouse) -> dict[str, str]:
    files = (path for path in (house.root / "index").rglob("*") if path.is_file())
    return {path.relative_to(house.root).as_posix(): path.read_text() for path in files}


def named(house: Wheelhouse) -> Iterator[tuple[Path, str]]:
    """Yield the place and the hash of every wheel that a page names, as an installer would read it."""
    for path, text in pages(house).items():
        page = house.root / path
        if page.suffix == ".json":
            for file in json.loads(text).get("files", ()):
                yield (page.parent / unquote(file["url"])).resolve(), file["hashes"]["sha256"]
        else:
            for link in Page(text).links:
                url, fragment = urldefrag(str(link["href"]))
                if url.endswith(".whl"):
                    yield (page.parent / unquote(url)).resolve(), fragment.removeprefix("sha256=")


def test_there_is_a_page_per_package_in_both_forms(house: Wheelhouse, entry: Entry) -> None:
    text = pages(house)
    assert sorted(path for path in text if path.startswith(f"{H200}/")) == [
        f"{H200}/index.html",
        f"{H200}/index.json",
        f"{H200}/mini/index.html",
        f"{H200}/mini/index.json",
    ]
    assert [link["href"] for link in Page(text[f"{H200}/index.html"]).links] == ["mini/"]
    assert json.loads(text[f"{H200}/index.json"]) == {"meta": {"api-version": "1.1"}, "projects": [{"name": "mini"}]}
    (link,) = Page(text[f"{H200}/mini/index.html"]).links
    url = f"../../../../sm90/torch2.14.1-cu130/{entry.wheel.name.replace('+', '%2B')}"
    assert link == {"href": f"{url}#sha256={sha256_of(entry.wheel)}", "data-requires-python": ">=3.10"}
    assert json.loads(text[f"{H200}/mini/index.json"]) == {
        "meta": {"api-version": "1.1"},
        "name": "mini",
        "versions": ["1.0+cu130torch2.14.1sm90"],
        "files": [
            {
                "filename": entry.wheel.name,
                "url": url,
                "hashes": {"sha256": sha256_of(entry.wheel)},
                "requires-python": ">=3.10",
                "size": entry.wheel.stat().st_size,
                "upload-time": "2026-11-30T00:00:00.000000Z",
            }
        ],
    }
    assert {place for place, _ in named(house)} == {entry.wheel.resolve()}


def test_each_gpu_type_each_device_code_and_each_torch_has_its_own_index(house: Wheelhouse, tmp_path: Path) -> None:
    for codes, gpu, stack in (("sm_90", "h200", STACK), ("sm_80", "l4", STACK), ("sm_90", "h200", OTHER)):
        house.offer(publish(house, tmp_path, codes=codes, stack=stack), gpu, stack)
    publish(house, tmp_path, codes="sm_120 compute_120", name="only_by_arch")
    house.write_index()
    roots = {path.removesuffix("/index.json") for path in pages(house) if path.count("/") == 3 and "json" in path}
    assert roots == {
        "index/h200/torch2.13.0-cu130",
        "index/h200/torch2.14.1-cu130",
        "index/l4/torch2.14.1-cu130",
        "index/sm120-ptx120/torch2.14.1-cu130",
        "index/sm80/torch2.14.1-cu130",
        "index/sm90/torch2.13.0-cu130",
        "index/sm90/torch2.14.1-cu130",
    }
    files = json.loads(pages(house)["index/l4/torch2.14.1-cu130/mini/index.json"])["files"]
    assert [file["filename"] for file in files] == ["mini-1.0+cu130torch2.14.1sm80-cp311-cp311-linux_x86_64.whl"]


@pytest.mark.usefixtures("entry")
def test_people_see_what_there_is_by_gpu_type(house: Wheelhouse, tmp_path: Path) -> None:
    publish(house, tmp_path, codes="sm_120 compute_120", name="only_by_arch", version="2.0")
    page = Page(pages(house)["index/index.html"])
    texts = page.texts[page.texts.index("h200") :]
    header = ["package", "version", "torch", "python", "device code", "MB"]
    assert texts[:13] == ["h200", *header, "mini", "1.0", "2.14.1+cu130", "cp311", "sm_90", "0.0"]
    assert texts[13:26] == [
        *("sm120-ptx120", *header),
        *("only_by_arch", "2.0", "2.14.1+cu130", "cp311", "sm_120 compute_120", "0.0"),
    ]
    assert texts[26] == "sm90"
    for link in page.links:
        assert (house.root / "index" / str(link["href"])).is_file()


def test_an_index_of_nothing_says_so(house: Wheelhouse) -> None:
    house.write_index()
    assert "No wheels are filed." in Page(pages(house)["index/index.html"]).texts
    assert list(pages(house)) == ["index/index.html"]


def test_what_a_wheel_says_is_escaped(house: Wheelhouse, tmp_path: Path) -> None:
    hostile = '<script>"&'
    entry = publish(house, tmp_path, headers=(f"Requires-Python: >=3.10, {hostile}",), python=hostile)
    house.offer(entry, "a&b", STACK)
    house.write_index()
    text = pages(house)["index/a&b/torch2.14.1-cu130/mini/index.html"]
    assert Page(text).links[0]["data-requires-python"] == f">=3.10, {hostile}"
    overview = pages(house)["index/index.html"]
    assert {hostile, "a&b"} <= set(Page(overview).texts)
    assert "<script>" not in text + overview
    assert set(named(house)) == {(entry.wheel.resolve(), entry.record.sha256)}


def test_versions_are_in_their_order_and_packages_by_name(house: Wheelhouse, tmp_path: Path) -> None:
    for name, version in (("b_c", "1.10"), ("b_c", "1.9"), ("a", "1.0")):
        house.offer(publish(house, tmp_path, name=name, version=version), "h200", STACK)
    house.write_index()
    assert [project["name"] for project in json.loads(pages(house)[f"{H200}/index.json"])["projects"]] == ["a", "b-c"]
    versions = json.loads(pages(house)[f"{H200}/b-c/index.json"])["versions"]
    assert versions == ["1.9+cu130torch2.14.1sm90", "1.10+cu130torch2.14.1sm90"]


def test_the_same_wheels_give_the_same_bytes_and_untouched_files(house: Wheelhouse, tmp_path: Path) -> None:
    other = Wheelhouse(tmp_path / "other")
    for each, order in ((house, ("1.0", "2.0", "3.0")), (other, ("3.0", "1.0", "2.0"))):
        for version in order:
            each.offer(publish(each, tmp_path, version=version), "h200", STACK)
        each.write_index()
    assert pages(house) == pages(other)
    before = {path: (house.root / path).stat().st_mtime_ns for path in pages(house)}
    house.write_index()
    assert {path: (house.root / path).stat().st_mtime_ns for path in pages(house)} == before


@pytest.mark.parametrize("created", ["2026-11-30T01:30:00+01:30", "2026-11-30T00:00:00"])
def test_dates_are_in_utc(house: Wheelhouse, tmp_path: Path, created: str) -> None:
    wheel, record = made(tmp_path)
    house.publish(wheel, replace(record, created=created), STACK)
    house.write_index()
    (file,) = json.loads(pages(house)["index/sm90/torch2.14.1-cu130/mini/index.json"])["files"]
    assert file["upload-time"] == "2026-11-30T00:00:00.000000Z"


def test_optional_fields_are_left_out(house: Wheelhouse, tmp_path: Path) -> None:
    wheel, record = made(tmp_path)
    house.publish(wheel, replace(record, created="yesterday"), STACK)
    house.write_index()
    text = pages(house)["index/sm90/torch2.14.1-cu130/mini/index.json"]
    (file,) = json.loads(text)["files"]
    assert file.keys() == {"filename", "url", "hashes", "size"}
    (link,) = Page(pages(house)["index/sm90/torch2.14.1-cu130/mini/index.html"]).links
    assert link.keys() == {"href"}


def break_record(entry: Entry) -> None:
    record_path(entry.wheel).write_text("{")


def truncate(entry: Entry) -> None:
    entry.wheel.write_bytes(entry.wheel.read_bytes()[:-1])


def scramble(entry: Entry) -> None:
    entry.wheel.write_bytes(bytes(entry.wheel.stat().st_size))


def prefix(entry: Entry) -> None:
    # A zip archive may have anything before it.
    entry.wheel.write_bytes(b"#!" + entry.wheel.read_bytes())


def rename(entry: Entry) -> None:
    renamed = entry.wheel.rename(entry.wheel.with_name(entry.wheel.name.replace("cp311", "cp312")))
    record_path(entry.wheel).rename(record_path(renamed))


@pytest.mark.parametrize("damage", [break_record, truncate, scramble, prefix, rename])
def test_what_is_not_what_was_published_is_not_listed(
    house: Wheelhouse, entry: Entry, damage: Callable[[Entry], None]
) -> None:
    damage(entry)
    house.write_index()
    assert list(named(house)) == []


def replaced(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    """Put a wheel of the same name and size in the place of another."""
    wheel, record = made(tmp_path, headers=("Requires-Python: >=3.11",), torch="other")
    assert (wheel.name, record.size) == (entry.wheel.name, entry.record.size)
    assert record.sha256 != entry.record.sha256
    house.publish(wheel, record, STACK)


def removed(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    assert tmp_path.is_dir()
    house.remove(entry)


def added(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    assert entry.record.version == "1.0"
    house.offer(publish(house, tmp_path, version="2.0"), "h200", STACK)


def offered_instead(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    assert entry.record.device_code == ("sm_90",)
    house.offer(publish(house, tmp_path, codes="sm_90 compute_90"), "h200", STACK)


@pytest.mark.parametrize("change", [replaced, removed, added, offered_instead])
@pytest.mark.parametrize("store", ["with links", "without links"])
def test_after_each_step_of_a_change_every_page_names_wheels_that_are_there(
    house: Wheelhouse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Wheelhouse, Entry, Path], None],
    store: str,
) -> None:
    """A process can be killed after any of them."""
    if store == "without links":
        monkeypatch.setattr(Path, "symlink_to", no_links)
    entry = publish(house, tmp_path)
    house.offer(entry, "h200", STACK)
    house.write_index()
    wrong: list[str] = []
    steps = watch(monkeypatch, lambda step: wrong.extend(f"{step}: {each}" for each in lies(house)))
    change(house, entry, tmp_path)
    assert wrong == []
    assert len(steps) > 3
    assert not list(house.stale_pages())


def lies(house: Wheelhouse) -> Iterator[str]:
    """Yield what an installer or a reader would be told that is not so, at this moment."""
    for place, digest in named(house):
        if not place.is_file() or sha256_of(place) != digest:
            yield f"a page says {digest[:8]} of {place.name}"
    for entry in house.entries():
        if sha256_of(entry.wheel) != entry.record.sha256:
            yield f"a record says {entry.record.sha256[:8]} of {entry.wheel.name}"


def watch(monkeypatch: pytest.MonkeyPatch, look: Callable[[str], None]) -> list[str]:
    """Call `look` after every rename and removal of a file, and return what they were."""
    steps: list[str] = []

    def watched(name: str) -> Callable[..., object]:
        original = getattr(Path, name)

        def call(self: Path, *args: object, **kwargs: object) -> object:
            result = original(self, *args, **kwargs)
            steps.append(f"{name} {self.name} {args}")
            look(steps[-1])
            return result

        return call

    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, watched(name))
    return steps


def no_links(*_: object) -> None:
    raise PermissionError(1, "no links here")


def test_pages_of_what_is_gone_go_and_other_files_stay(house: Wheelhouse, entry: Entry) -> None:
    (house.root / "index" / "robots.txt").write_text("mine")
    (house.root / H200 / "mini" / "notes.txt").write_text("mine")
    house.remove(entry)
    assert sorted(pages(house)) == [
        "index/h200/torch2.14.1-cu130/mini/notes.txt",
        "index/index.html",
        "index/robots.txt",
    ]
    assert not (house.root / "index" / "sm90").exists()


def test_without_an_index_a_change_writes_none(house: Wheelhouse, tmp_path: Path) -> None:
    house.offer(publish(house, tmp_path), "h200", STACK)
    assert not (house.root / "index").exists()
    assert house.stale_pages() == ()


def test_the_index_is_no_wheel_and_no_gpu_type(house: Wheelhouse, entry: Entry) -> None:
    assert list(house.wheels()) == [entry.wheel]
    assert house.gpus() == ("h200",)


def test_a_wheel_that_was_deleted_by_hand_is_told_and_taken_out(house: Wheelhouse, entry: Entry) -> None:
    entry.wheel.unlink()
    stale = {fault.path for fault in verify(house) if "archpatch wheelhouse index" in fault.problem}
    assert stale == {house.root / path for path in pages(house)}
    house.write_index()
    assert list(named(house)) == []
    assert house.stale_pages() == ()


def test_a_moved_house_needs_no_new_index(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    moved = Wheelhouse(house.root.rename(tmp_path / "elsewhere"))
    assert moved.stale_pages() == ()
    assert {place for place, _ in named(moved)} == {moved.root.resolve() / entry.wheel.relative_to(house.root)}


def test_behind_a_link_to_the_wheelhouse_the_pages_are_the_same(
    house: Wheelhouse, entry: Entry, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(house.root)
    behind = Wheelhouse(tmp_path / "link")
    assert behind.index_pages() == house.index_pages()
    assert behind.index_pages(without=next(behind.wheels())) == house.index_pages(without=entry.wheel)


@pytest.mark.parametrize("killed_in", ["offer", "publish"])
def test_pages_that_a_killed_process_did_not_write_are_written_by_the_rerun(
    house: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    house.write_index()
    change: Callable[[], object] = partial(publish, house, tmp_path)
    if killed_in == "offer":
        change = partial(house.offer, publish(house, tmp_path), "h200", STACK)
    with monkeypatch.context() as patch:
        patch.setattr(Wheelhouse, "_keep_index", stop)
        with pytest.raises(KeyboardInterrupt):
            change()
    assert house.stale_pages() != ()
    # The wheel is found, and noted or linked: it need not be published again.
    if killed_in == "offer":
        house.offer(next(house.entries()), "h200", STACK)
    else:
        house.remember("key", next(house.entries()), {})
    assert house.stale_pages() == ()


def test_where_nobody_may_lock_the_pages_are_looked_at_all_the_same(
    house: Wheelhouse, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(30, "read-only")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    entry.wheel.unlink()
    assert [fault.path for fault in verify(house) if "archpatch wheelhouse index" in fault.problem]


def test_pages_that_a_change_is_writing_are_no_fault(
    house: Wheelhouse, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change ends while the lock is waited for."""
    page = house.root / H200 / "mini" / "index.html"
    text = page.read_text()
    page.write_text("half")
    original = Wheelhouse.lock

    def lock(self: Wheelhouse, name: str) -> object:
        page.write_text(text)
        return original(self, name)

    monkeypatch.setattr(Wheelhouse, "lock", lock)
    assert house.stale_pages() == (page,)
    assert not [fault for fault in verify(house) if fault.path != entry.wheel]
    assert page.read_text() == text
