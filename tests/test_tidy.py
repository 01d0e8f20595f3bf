"""The repository keeps its own promises: words, links, pins and what nothing calls."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("contract", "supervisor", "pilot", "evaluator_client", "broker")
# Written apart so that this file does not hold what it looks for.
REGISTRY_HOSTS = tuple("".join(parts) for parts in (("pypi", ".org"), ("python", "hosted"), ("registry.", "npmjs")))
HOME_PATHS = re.compile("/(?:" + "|".join(("ro" + "ot", "ho" + "me/[a-z]", "wo" + "rk")) + ")/")


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would add; all files where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    """A pin or a path that holds on one machine only breaks the next clone."""
    found = []
    for path in tracked():
        if path.suffix in {".png", ".dxf"}:
            continue
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {host}" for host in REGISTRY_HOSTS if host in text]
        found += [f"{path.relative_to(ROOT)}: {match}" for match in HOME_PATHS.findall(text)]

    assert [] == found


def test_every_package_is_pinned_with_hashes_and_without_addresses() -> None:
    """`pip install --require-hashes` accepts the lock on any index."""
    text = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^([a-z0-9][a-z0-9._-]*)==", text, flags=re.MULTILINE)

    assert pins
    assert "://" not in text
    assert text.count("==") <= text.count("--hash=sha256:")


def test_the_lock_covers_every_dependency() -> None:
    """A dependency that was added without `make lock` is missing on a fresh machine."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = {re.split(r"[<>=~! \[]", item, maxsplit=1)[0].lower().replace("_", "-") for item in wanted}
    lock = (ROOT / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9][a-z0-9._-]*)==", lock, flags=re.MULTILINE))

    assert set() == names - pinned


@pytest.mark.parametrize("document", tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_link_to_files_that_exist(document: Path) -> None:
    """A link to a file that moved is a lie to a newcomer."""
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    missing = [t for t in targets if "://" not in t and not (document.parent / t).exists()]

    assert [] == missing


def test_the_readme_names_only_targets_that_make_knows() -> None:
    """What the README tells a newcomer to type must exist."""
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)(?:\$ )?make ([a-z0-9-]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE))

    assert set() == named - known


def test_every_make_target_says_what_it_does() -> None:
    """`make help` is the list of targets."""
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    documented = set(re.findall(r"^([a-z0-9-]+):.*## ", text, flags=re.MULTILINE))

    assert set(phony.split()) == documented


def test_every_module_is_imported_or_run() -> None:
    """Code that nothing reaches is deleted."""
    words: set[str] = set()
    for path in tracked("*.py", "pyproject.toml"):
        text = path.read_text()
        words.update(re.findall(r"[a-z_]+(?:\.[a-z_0-9]+)+", text))
        for package, names in re.findall(
            r"^\s*from ([a-z_.0-9]+) import ([^(#\n]+|\([^)]*\))", text, flags=re.MULTILINE
        ):
            words.update(f"{package}.{name.split(' as ')[0].strip()}" for name in names.strip("()").split(","))
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in tracked("*.py")
        if path.relative_to(ROOT).parts[0] in ROOMS and path.name not in {"__init__.py", "__main__.py"}
    ]

    assert [] == [module for module in modules if module not in words]


def test_rooms_read_the_environment_only_where_they_are_entered() -> None:
    """Everyone else gets arguments, so a test can hand in its own and no secret is found by chance."""
    entries = {"supervisor/cli.py", "pilot/__main__.py", "broker/__main__.py", "broker/evaluator/__main__.py"}
    entries.add("broker/instance.py")
    # python-xlib takes the path of its cookie file from the environment and offers no other way.
    entries.add("broker/desktop/xlink.py")
    readers = [
        str(path.relative_to(ROOT))
        for path in tracked("*.py")
        if path.relative_to(ROOT).parts[0] in ROOMS and re.search(r"os\.environ|os\.getenv", path.read_text())
    ]

    assert [] == [reader for reader in readers if reader not in entries]
