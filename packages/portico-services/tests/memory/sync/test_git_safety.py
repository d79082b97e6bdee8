"""Hostile repositories: none of their contents is executed or sent elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from portico_services.memory.errors import SyncError
from portico_services.memory.sync.engine import SYNC_REF, sync_memories
from portico_services.memory.sync.git_repository import GitRepository
from support.git_clones import Clone, git, sync_both
from support.memories import capture_memory, search_contents

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")

# Each of git's settings that names a program, or another place to read from or speak to. {run} is a program that
# leaves a mark, {url} the address of a server that nobody asked for.
RUNS = [
    "remote.origin.uploadpack={run}",
    "remote.origin.receivepack={run}",
    "remote.origin.vcs={run}",
    "core.gitProxy={run}",
    "core.alternateRefsCommand={run}",
    "core.fsmonitor={run}",
    "core.sshCommand={run}",
    "core.askPass={run}",
    "core.pager={run}",
    "core.editor={run}",
    "core.hooksPath={hooks}",
    "credential.helper=!{run}",
    "gpg.program={run}",
    "gpg.ssh.program={run}",
    "gpg.x509.program={run}",
    "gpg.ssh.defaultKeyCommand={run}",
    "commit.gpgSign=true",
    "push.gpgSign=true",
    "tag.gpgSign=true",
    "log.showSignature=true",
    "pager.log={run}",
    "pager.config={run}",
    "pager.ls-remote={run}",
    "diff.external={run}",
    "diff.evil.command={run}",
    "diff.evil.textconv={run}",
    "merge.evil.driver={run}",
    "filter.evil.clean={run}",
    "filter.evil.smudge={run}",
    "filter.evil.process={run}",
    "uploadpack.packObjectsHook={run}",
    "sequence.editor={run}",
    "interactive.diffFilter={run}",
    "init.templateDir={hooks}",
    "protocol.allow=always",
    "protocol.ext.allow=always",
    "url.ext::{run}.insteadOf={origin}",
    "url.ext::{run}.pushInsteadOf={origin}",
    "include.path={included}",
    "includeIf.gitdir:**.path={included}",
    "extensions.worktreeConfig=true",
    "extensions.partialClone=evil",
    "remote.evil.promisor=true",
    "remote.evil.partialclonefilter=blob:none",
    "remote.evil.uploadpack={run}",
    "gc.auto=1",
    "maintenance.auto=true",
    "fetch.recurseSubmodules=true",
    "submodule.recurse=true",
    "http.proxy=http://{elsewhere}",
    "http.curloptResolve=localhost:80:{elsewhere}",
    "remote.origin.proxy=http://{elsewhere}",
    "core.attributesFile={attributes}",
    "alias.fetch=!{run}",
    "alias.ls-remote=!{run}",
    "browser.evil.cmd={run}",
    "man.evil.cmd={run}",
    "trailer.evil.command={run}",
    "fetch.bundleURI=http://{elsewhere}",
    "transfer.bundleURI=true",
    "core.worktree={hooks}",
    "receive.denyCurrentBranch=updateInstead",
    "ssh.variant=simple",
    "sendemail.smtpServer={run}",
    "difftool.evil.cmd={run}",
    "mergetool.evil.cmd={run}",
    "web.browser={run}",
    "instaweb.httpd={run}",
    "log.mailmap=true",
    "mailmap.blob=HEAD:x",
    "fsck.skipList={included}",
    "fetch.fsck.skipList={included}",
]
SETTINGS_PER_TEST = 12
HOOKS = [
    "pre-push",
    "post-update",
    "pre-receive",
    "update",
    "post-receive",
    "reference-transaction",
    "pre-auto-gc",
    "post-checkout",
]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What the program writes to when it is run."""
    return tmp_path / "was-run"


@pytest.fixture
def run(tmp_path: Path, mark: Path) -> Path:
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {mark}\nexit 1\n')
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in HOOKS:
        shutil.copy(program, hooks / name)
    (tmp_path / "included").write_text(
        f'[core]\n\talternateRefsCommand = {program}\n[remote "origin"]\n\tuploadpack = {program}\n'
    )
    (tmp_path / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
    return program


def nothing_ran(mark: Path) -> None:
    assert not mark.exists(), mark.read_text()


def read(config: Path) -> str:
    return config.read_text()


def restore(config: Path, text: str) -> None:
    config.write_text(text)


def spoil(folder: Path, setting: str, tmp_path: Path, origin: Path) -> None:
    values = {name: tmp_path / name for name in ("hooks", "included", "attributes")}
    key, _, value = setting.format(
        run=tmp_path / "program", origin=origin, elsewhere="192.0.2.1:1", **values
    ).partition("=")
    if "insteadOf" in key or "pushInsteadOf" in key:
        key, _, value = setting.format(run=tmp_path / "program", origin=origin).rpartition("=")
    git(folder, "config", "--add", key, value)


@pytest.mark.parametrize("start", range(0, len(RUNS), SETTINGS_PER_TEST))
async def test_setting_of_the_repository_runs_nothing(
    clone: Clone, origin: Path, tmp_path: Path, run: Path, mark: Path, start: int
) -> None:
    """Each setting alone, one after the other in the same clone: making clones takes longer than synchronising them."""
    ann, bob = await clone("ann"), await clone("bob")
    # An alternate makes git ask it for its refs.
    (tmp_path / "bob/.git/objects/info/alternates").write_text(f"{origin}/objects\n")
    config = tmp_path / "bob/.git/config"
    original = read(config)
    for setting in RUNS[start : start + SETTINGS_PER_TEST]:
        await capture_memory(ann, f"about plums and {setting}")
        await sync_memories(ann)
        await capture_memory(bob, f"about pears and {setting}")
        spoil(tmp_path / "bob", setting, tmp_path, origin)
        synced = await sync_memories(bob)
        assert (synced.added, synced.sent) == (1, 1), setting
        nothing_ran(mark)
        restore(config, original)


async def test_hostile_git_settings_together_run_nothing(
    clone: Clone, origin: Path, tmp_path: Path, run: Path, mark: Path
) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    for setting in RUNS:
        spoil(tmp_path / "bob", setting, tmp_path, origin)
    worktree = tmp_path / "bob/.git/config.worktree"
    worktree.write_text((tmp_path / "included").read_text())
    shutil.rmtree(tmp_path / "bob/.git/hooks", ignore_errors=True)
    shutil.copytree(tmp_path / "hooks", tmp_path / "bob/.git/hooks")
    kept = await capture_memory(bob, "about pears")
    await sync_memories(bob)
    await bob.delete(kept.id, hard=True)
    assert (await sync_memories(bob)).sent == 1
    nothing_ran(mark)


@pytest.mark.parametrize("scheme", ["", "file://"])
async def test_remote_inside_of_the_repository_runs_nothing(
    clone: Clone, tmp_path: Path, run: Path, mark: Path, scheme: str
) -> None:
    """The other end of an address on this machine is another repository of theirs, with hooks and settings."""
    ann = await clone("ann")
    await capture_memory(ann, "about plums")
    evil = tmp_path / "ann/.git/evil.git"
    git(tmp_path, "init", "--quiet", str(evil))
    inside = evil / ".git"
    shutil.rmtree(inside / "hooks", ignore_errors=True)
    shutil.copytree(tmp_path / "hooks", inside / "hooks")
    (inside / "info").mkdir(exist_ok=True)
    (inside / "info/attributes").write_text("* filter=evil\n")
    (inside / "objects/info/alternates").write_text(f"{tmp_path}/ann/.git/objects\n")
    for setting in RUNS:
        if not setting.startswith(("core.worktree", "receive.denyCurrentBranch", "extensions.")):
            spoil(evil, setting, tmp_path, tmp_path / "origin.git")
    git(evil, "config", "core.hooksPath", str(tmp_path / "hooks"))
    git(tmp_path / "ann", "remote", "set-url", "origin", f"{scheme}{evil}")
    assert (await sync_memories(ann)).sent == 1
    kept = await capture_memory(ann, "about pears")
    await sync_memories(ann)
    await ann.delete(kept.id, hard=True)
    await sync_memories(ann)
    # A push to what is checked out there would be checked out, through filters.
    (inside / "HEAD").write_text(f"ref: {SYNC_REF}\n")
    git(evil, "config", "receive.denyCurrentBranch", "updateInstead")
    await capture_memory(ann, "about apples")
    with pytest.raises(SyncError):
        await sync_memories(ann)
    nothing_ran(mark)


@pytest.mark.parametrize(
    "url",
    [
        "ext::{run} x",
        "fd::7",
        "transport::x",
        "-oProxyCommand={run}",
        "ssh://-oProxyCommand={run}/x",
        "--upload-pack={run}",
    ],
)
async def test_address_that_names_a_program_runs_nothing(
    clone: Clone, tmp_path: Path, run: Path, mark: Path, url: str
) -> None:
    ann = await clone("ann")
    await capture_memory(ann, "about plums")
    git(tmp_path / "ann", "config", "remote.origin.url", url.format(run=run))
    with pytest.raises(SyncError):
        await sync_memories(ann)
    nothing_ran(mark)


async def test_global_git_config_and_repository_identity_apply(
    clone: Clone, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    mine = tmp_path / "gitconfig"
    mine.write_text(
        f'[url "{origin}"]\n\tinsteadOf = work:\n[includeIf "gitdir:{tmp_path}/ann/"]\n\tpath = {tmp_path}/at-work\n'
    )
    (tmp_path / "at-work").write_text("[user]\n\tname = Ann at Work\n\temail = ann@work.test\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(mine))
    for name in ("NAME", "EMAIL"):
        monkeypatch.delenv(f"GIT_COMMITTER_{name}", raising=False)
    git(tmp_path / "ann", "config", "remote.origin.url", "work:")
    await capture_memory(ann, "about plums")
    assert (await sync_memories(ann)).sent == 1
    assert git(origin, "log", "-1", "--format=%an <%ae>", SYNC_REF) == "Ann at Work <ann@work.test>"
    # And of the repository's own what names nobody else.
    git(tmp_path / "bob", "config", "user.name", 'Bob "the \\ second" here')
    git(tmp_path / "bob", "config", "user.email", "bob@here.test")
    await capture_memory(bob, "about pears")
    await sync_memories(bob)
    assert git(origin, "log", "-1", "--format=%an <%ae>", SYNC_REF) == 'Bob "the \\ second" here <bob@here.test>'


async def test_working_trees_and_packed_refs_are_followed(clone: Clone, tmp_path: Path) -> None:
    ann, bob = await clone("ann"), await clone("bob")
    await capture_memory(ann, "about plums")
    await sync_both(ann, bob)
    identity = ("-c", "user.name=x", "-c", "user.email=x@x")
    git(tmp_path / "ann", *identity, "commit", "--quiet", "--allow-empty", "-m", "first")
    git(tmp_path / "ann", "pack-refs", "--all")
    git(tmp_path / "ann", "worktree", "add", "--quiet", str(tmp_path / "tree"), "-b", "other")
    ann.root = str(tmp_path / "tree")
    await capture_memory(ann, "about pears")
    await sync_both(ann, bob)
    git(tmp_path / "ann", "pack-refs", "--all")
    await capture_memory(ann, "about apples")
    await sync_both(ann, bob)
    assert len(await search_contents(bob)) == 3
    git(tmp_path / "ann", "fsck", "--strict")


async def test_stale_directory_of_a_killed_process_is_removed(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await clone("ann")
    inside = tmp_path / "ann/.git"
    with GitRepository.open(tmp_path / "ann"):
        (left,) = inside.glob("portico-*")
    assert not left.exists()
    left.mkdir()
    (left / "refs").symlink_to(inside / "refs")
    with GitRepository.open(tmp_path / "ann"):
        assert left.exists()  # it may belong to somebody who is at work
    monkeypatch.setattr("portico_services.memory.sync.git_repository._STALE_SECONDS", -1.0)
    with GitRepository.open(tmp_path / "ann"):
        assert not left.exists()
    assert (inside / "refs").is_dir()
