#!/usr/bin/env python3
"""The page in a headless Chromium, with a real daemon and real VMs.

    make test-ui                       # or: ui/test/run.py --dist target/dist --pictures /tmp/pictures

Root; Debian's chromium. It has a network namespace of its own, so nothing that Chromium does leaves the host.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback

from chromium import SHIFT, Chromium, Failed
from host import PORT, Cable, Host

INSIDE = "FORKYARD_PAGE_TEST_INSIDE"
ROWS = "[...document.querySelectorAll('#tree [role=treeitem]')]"
NAMES = f"{ROWS}.map((row) => row.querySelector('.name').textContent)"


class Story:
    """What a user does, from the first look on. Each step takes up where the one before left."""

    def __init__(self, browser, host, neighbour, origin, pictures):
        self.b, self.host, self.origin, self.pictures = browser, host, origin, pictures
        self.neighbour = neighbour

    def picture(self, name):
        if self.pictures:
            time.sleep(0.7)  # what moves has come to rest
            self.b.picture(os.path.join(self.pictures, f"{name}.png"))

    def state(self, name, wanted):
        self.b.wait(f"{name} is {wanted}", f"{ROWS}.some((row) => row.querySelector('.name').textContent === '{name}'"
                    f" && row.querySelector('.badge').textContent === '{wanted}')")

    def choose(self, name, tab=None):
        self.b.wait(f"{name} is listed", f"{NAMES}.includes('{name}')")
        self.b.click("#tree .name", name)
        self.b.wait(f"{name} is shown", f"document.querySelector('#chosen').textContent === '{name}'")
        if tab:
            self.b.click("[role=tab]", tab)

    def terminal(self, wanted, what):
        self.b.wait(what, f"window.forkyardView?.text.includes({json.dumps(wanted)})")

    def notice_closed(self):
        self.b.js("document.querySelectorAll('#notices .close').forEach((close) => close.click())")

    # The steps

    def nothing_is_shown_without_a_token_that_holds(self):
        self.b.open(f"{self.origin}/")
        self.b.wait("the token is asked for", "document.activeElement?.id === 'token'")
        self.b.type("fy_wrong")
        self.b.press("Enter")
        self.b.wait("the refusal is shown as the API tells of it",
                    "document.querySelector('#login-error').textContent.includes('What to do: forkyard token create')")
        self.picture("refused")
        self.b.type(self.host.token)
        self.b.press("Enter")
        self.b.wait("the page is open and live", "document.querySelector('#live-text')?.textContent === 'live'")
        kept = self.b.js("[location.href, document.cookie, Object.keys(localStorage).length]")
        assert kept == [f"{self.origin}/ui/", "", 0], f"a token is in a URL or kept for good: {kept}"

    def an_empty_host_says_what_to_do_next(self):
        self.b.wait("the next step is said", "document.querySelector('.welcome').textContent.includes('No VMs yet')")
        self.b.wait("the tree, which is empty, has the focus at its heading", "document.activeElement?.id === 'families'")
        self.picture("empty")

    def a_vm_is_run_from_the_page(self):
        self.b.click("#run")
        self.b.wait("images are listed", "document.querySelector('dialog [name=image]')?.options.length > 0")
        self.b.js("document.querySelector('dialog [name=image]').value = 'tiny'")
        self.b.js("document.querySelector('dialog [name=name]').focus()")
        self.b.type("p")
        self.b.js("document.querySelector('dialog [name=labels]').focus()")
        self.b.type("user=ada")
        self.picture("run")
        self.b.press("Enter")
        self.state("p", "running")
        self.b.wait("its label is shown", f"{ROWS}[0].querySelector('.tag')?.textContent === 'user=ada'")

    def a_refusal_stays_in_its_dialog(self):
        self.b.click("#run")
        self.b.wait("the dialog", "Boolean(document.querySelector('dialog [name=name]'))")
        self.b.js("document.querySelector('dialog [name=image]').value = 'tiny'")
        self.b.js("document.querySelector('dialog [name=name]').focus()")
        self.b.type("p")
        self.b.press("Enter")
        self.b.wait("why", "document.querySelector('dialog .problem').textContent !== ''")
        self.picture("error")
        self.b.press("Escape")
        self.b.wait("it is closed", "!document.querySelector('dialog')")

    def a_terminal_takes_what_is_typed(self):
        self.choose("p", "Terminal")
        self.terminal("# ", "a prompt")
        for text in ("X=warm; ech", "o $((6*", "7)) $X"):
            self.b.type(text)
        self.b.press("Enter")
        self.terminal("\n42 warm", "what the shell answers")
        self.b.type("printf '\\033[38;2;255;120;0mcolours\\033[0m\\n'; stty size")
        self.b.press("Enter")
        self.b.wait("the shell's terminal has the size of the page's",
                    "new RegExp(`\\n\\\\d+ ${document.querySelector('.xterm-rows') ? '\\\\d+' : 'none'}\\n`).test(forkyardView.text)"
                    " && forkyardView.text.includes(`\\n${forkyardView.size.rows} ${forkyardView.size.cols}\\n`)")
        self.picture("terminal")
        self.b.press("Tab", SHIFT)
        self.b.wait("the keyboard leads out of it", "!document.activeElement.closest('.xterm')")

    def a_fork_shows_while_it_runs_and_its_report_afterwards(self):
        self.b.js("window.most = { ghosts: 0, rows: [] }; new MutationObserver(() => {"
                  " most.ghosts = Math.max(most.ghosts, document.querySelectorAll('.ghost').length);"
                  f" const rows = {ROWS}.length; if (most.rows.at(-1) !== rows) most.rows.push(rows);"
                  "}).observe(document.querySelector('#tree'), { childList: true, subtree: true })")
        self.b.click(".frame button", "Fork…")
        self.b.wait("the dialog", "document.activeElement?.name === 'count'")
        self.b.js("document.activeElement.select()")
        self.b.type("3")
        self.b.press("Enter")
        self.b.wait("clones are awaited", "document.querySelectorAll('.ghost').length > 0 || most.rows.at(-1) === 4")
        if self.pictures:
            self.b.picture(os.path.join(self.pictures, "fork.png"))
        self.b.wait("p has three clones", f"{NAMES}.join() === 'p,p-1,p-2,p-3'")
        self.b.wait("none is awaited any more", "document.querySelectorAll('.ghost').length === 0")
        most = self.b.js("most")
        assert most["ghosts"] == 3 and most["rows"] == sorted(most["rows"]), f"the tree did not grow as it should: {most}"
        self.b.wait("the timeline has a pause", "Boolean(document.querySelector('#panel-forks .timeline rect.pause'))")
        self.b.wait("it is said", "document.querySelector('#notices').textContent.includes('3 clones of p are ready')")
        self.b.wait("memory is known", "[...document.querySelectorAll('#tree .size')].every((size) => size.textContent !== '')")
        self.picture("family")
        self.notice_closed()

    def a_clone_has_its_parents_shell_and_is_somebody_else(self):
        self.choose("p-2", "Terminal")
        self.terminal("\n42 warm", "what the parent's shell had said")
        self.b.wait("connected", "document.querySelector('#panel-terminal .note').textContent.startsWith('connected')")
        self.b.type("echo $X on $(hostname)")
        self.b.press("Enter")
        self.terminal("\nwarm on p-2", "its own name")
        self.picture("clone")

    def a_console_shows_what_the_kernel_says_and_is_typed_to(self):
        self.choose("p", "Console")
        self.b.wait("connected", "document.querySelector('#panel-console .note')?.textContent.startsWith('connected')")
        self.b.press("Enter")
        self.terminal("# ", "a shell answers at the console")
        self.b.type("echo $((6*8))")
        self.b.press("Enter")
        self.terminal("\n48", "what it answers")
        self.picture("console")

    def families_are_walked_through_by_keyboard(self):
        self.choose("p", "Overview")
        at = "document.activeElement.querySelector('.name').textContent"
        self.b.js("document.querySelector('#tree [tabindex=\"0\"]').focus()")
        for key, name in [("ArrowDown", "p-1"), ("End", "p-3"), ("ArrowUp", "p-2"), ("ArrowLeft", "p")]:
            self.b.press(key)
            assert self.b.js(at) == name, f"{key}: not at {name} but {self.b.js(at)}"
        self.b.press("ArrowLeft")
        assert self.b.js("document.activeElement.getAttribute('aria-expanded')") == "false"
        assert self.b.js("document.querySelector('#tree [role=group]').checkVisibility()") is False
        self.b.press("ArrowRight")
        self.b.press("ArrowRight")
        self.b.press("Enter")
        self.b.wait("p-1 is chosen", "document.querySelector('#chosen').textContent === 'p-1'")
        assert self.b.js(at) == "p-1", "the focus has left the tree"
        assert self.b.js("document.querySelectorAll('#tree [tabindex=\"0\"]').length") == 1

    def a_vm_is_paused_stopped_and_kept(self):
        self.choose("p-1")
        self.b.click(".frame button", "Pause")
        self.state("p-1", "paused")
        self.b.click(".frame button", "Resume")
        self.state("p-1", "running")
        self.b.click(".frame button", "Checkpoint…")
        self.b.wait("the dialog", "Boolean(document.querySelector('dialog [name=name]'))")
        self.b.js("document.querySelector('dialog [name=name]').focus()")
        self.b.type("kept")
        self.b.press("Enter")
        self.b.wait("it is listed", "document.querySelector('#checkpoints').textContent.includes('kept')")
        self.b.click(".frame button", "Stop")
        self.state("p-1", "stopped")
        self.b.click(".frame button", "Start")
        self.b.wait("that clones do not start again is said", "document.querySelector('.notice.bad')?.textContent.includes('start failed')")
        self.picture("states")
        self.notice_closed()

    def what_is_kept_on_disk_is_forked_and_woken(self):
        self.b.click("#checkpoints button", "Fork")
        self.b.wait("the dialog", "document.activeElement?.name === 'count'")
        self.b.js("document.activeElement.select()")
        self.b.type("1")
        self.b.press("Enter")
        clone = self.b.wait("a clone of it runs", f"{ROWS}.find((row) => row.querySelector('.name').textContent.startsWith('kept-')"
                            " && row.querySelector('.badge').textContent === 'running')?.querySelector('.name').textContent")
        assert self.b.js("document.querySelector('[aria-selected=true] .name').textContent") == "kept"
        self.notice_closed()
        self.host.forkyard("rm", clone)
        # That of the image's first boot, which the host keeps by itself.
        self.b.click("#substrates button", "Wake")
        self.b.wait("the dialog", "Boolean(document.querySelector('dialog [name=name]'))")
        self.b.js("document.querySelector('dialog [name=name]').focus()")
        self.b.type("woken")
        self.b.press("Enter")
        self.state("woken", "running")
        self.b.wait("it is chosen, a founder", "document.querySelector('.line').textContent.startsWith('tiny')")
        self.host.forkyard("rm", "woken")

    def shells_are_ended_and_begun(self):
        self.choose("p", "Terminal")
        self.terminal("42 warm", "the shell of before")
        self.b.click("#panel-terminal button", "End shell")
        self.b.wait("that is said", "document.querySelector('#panel-terminal .note').textContent.includes('has ended: signal 9')")
        self.choose("p-2")
        self.choose("p")
        self.b.click("#panel-terminal button", "Open a shell")
        self.terminal("# ", "a prompt")
        self.b.type("echo second")
        self.b.press("Enter")
        self.terminal("\nsecond", "what it answers")
        self.b.click("#panel-terminal button", "New shell")
        self.b.wait("it is another one", "document.querySelector('#panel-terminal select')?.options.length === 2")
        assert not self.b.js("forkyardView.text.includes('second')")
        assert not self.b.js("forkyardView.text.includes('42 warm')")
        self.choose("p", "Overview")

    def what_others_have_written_is_text(self):
        evil = "<img src=x onerror=alert(1)>"
        self.b.js(f"""fetch('/v1/vms/p-3/labels', {{ method: 'POST', body: JSON.stringify({{ evil: {json.dumps(evil)} }}),
            headers: {{ 'Content-Type': 'application/json', Authorization: `Bearer ${{sessionStorage.getItem('forkyard-token')}}` }} }})""")
        self.choose("p-3", "Overview")
        self.b.wait("it is shown as it is", f"document.querySelector('#panel-overview').textContent.includes({json.dumps(evil)})")
        assert self.b.js("document.querySelectorAll('#app main img').length") == 0

    def an_answer_that_is_older_than_an_event_changes_no_state(self):
        seen = self.b.js("""(async () => {
            const state = new (await import('/ui/state.js')).State();
            const event = (what, id) => ({ kind: 'vm', time_ms: 1, subject: { vm: { id, name: id, family: 'f' }, fork: null }, what });
            const vm = (id) => ({ id, name: id, family: 'f', state: 'running', labels: { new: 'yes' } });
            state.setVms([vm('a'), vm('b')], state.now());
            const since = state.now();
            state.apply(event({ vm_changed: { from: 'running', to: 'paused', failure: null } }, 'a'));
            state.apply(event({ vm_removed: { state: 'running', failure: null } }, 'b'));
            state.apply(event({ vm_created: { state: 'running', parent: 'a', image: 'tiny' } }, 'c'));
            state.setVms([vm('a'), vm('b')], since);
            state.setVm(vm('b'), since);
            const old = [...state.vms.values()].map((vm) => `${vm.id} ${vm.state} ${vm.labels?.new ?? ''}`).join();
            state.setVms([vm('a')], state.now());
            return [old, [...state.vms.values()].map((vm) => `${vm.id} ${vm.state}`).join()];
        })()""")
        assert seen == ["a paused yes,c running ", "a running"], seen

    def a_vm_is_moved_to_another_host(self):
        self.host.forkyard("run", "tiny", "--name", "m", "--memory", "128")
        self.choose("m")
        assert not self.b.js("[...document.querySelectorAll('.frame button')].find((it) => it.textContent === 'Move…').checkVisibility()")
        self.host.meet({"b": self.neighbour})
        self.b.wait("there is a host to move it to",
                    "[...document.querySelectorAll('.frame button')].find((it) => it.textContent === 'Move…').checkVisibility()")
        self.b.click(".frame button", "Move…")
        self.b.wait("the dialog", "document.querySelector('dialog [name=to]')?.value === 'b'")
        self.picture("move")
        self.b.click("dialog button", "Move")
        self.b.wait("it is said how long it stood still", "document.querySelector('#notices').textContent.includes('It stood still for')")
        # Its old line goes and a new one comes, at any time: it is chosen until it is the new one.
        self.b.wait("its host is shown", f"{ROWS}.find((row) => row.querySelector('.name').textContent === 'm')?.querySelector('.name').click(),"
                    " document.querySelector('.line').textContent.includes('on b')")
        self.picture("moved")
        names = [(vm["name"], vm["host"]) for vm in json.loads(self.neighbour.forkyard("ps", "-o", "json"))]
        assert names == [("m", None)], names
        assert not self.b.js("[...document.querySelectorAll('.frame button')].find((it) => it.textContent === 'Move…').checkVisibility()")
        self.notice_closed()
        self.host.forkyard("rm", "m")
        self.host.meet({})

    def it_goes_on_when_its_daemon_was_killed(self):
        self.host.kill()
        self.b.wait("that is said", "document.querySelector('#live').dataset.kind === 'bad'")
        self.host.start()
        self.b.wait("it is live again", "document.querySelector('#live-text').textContent === 'live'")
        self.host.forkyard("rm", "p-2")
        self.b.wait("it hears of what happens", f"!{NAMES}.includes('p-2')")

    def it_fits_a_phone_and_the_dark(self):
        self.b.scheme("dark")
        self.choose("p", "Forks")
        self.picture("dark")
        self.b.size(360, 740)
        wide = "document.documentElement.scrollWidth <= 360"
        for tab in ("Overview", "Forks", "Terminal"):
            self.b.click("[role=tab]", tab)
            self.b.wait(f"{tab} fits", wide, 10)
            self.picture(f"narrow-{tab.lower()}")
        self.b.click(".back")
        self.b.wait("all fits", wide, 10)
        self.picture("narrow")
        self.choose("kept")
        self.host.forkyard("rm", "kept")
        self.b.wait("what has gone leads back to all", "document.querySelector('#tree').checkVisibility()")
        self.b.scheme("light")
        self.b.size(1280, 820)

    def what_is_removed_is_asked_for_and_goes(self):
        self.choose("p-3")
        self.b.click(".frame button", "Remove…")
        self.b.wait("the answer at hand is no", "document.activeElement?.textContent === 'Cancel'")
        self.picture("remove")
        self.b.press("Enter")
        self.b.wait("it is closed", "!document.querySelector('dialog')")
        assert self.b.js(f"{NAMES}.includes('p-3')"), "removed without being asked for"
        self.b.click(".frame button", "Remove…")
        self.b.click("dialog button", "Remove")
        self.b.wait("it is gone", f"!{NAMES}.includes('p-3')")
        self.b.wait("nothing is chosen", "document.querySelector('.welcome').checkVisibility()")
        names = [vm["name"] for vm in json.loads(self.host.forkyard("ps", "-o", "json"))]
        assert "p-3" not in names and "p" in names, names

    def everything_that_can_be_used_has_a_name(self):
        self.choose("p", "Overview")
        usable = {"button", "tab", "treeitem", "tree", "textbox", "combobox", "spinbutton", "link", "dialog", "checkbox", "radio"}

        def of(node, what):
            return node.get(what, {}).get("value", "")

        for opened in (None, "#run", ".frame button.primary"):
            if opened:
                self.b.click(opened)
                self.b.wait("the dialog", "Boolean(document.querySelector('dialog[open]'))")
            nodes = [node for node in self.b.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
            found = [node for node in nodes if of(node, "role") in usable]
            nameless = [of(node, "role") for node in found if not of(node, "name").strip()]
            assert found and not nameless, f"without a name: {nameless}"
            if opened:
                self.b.press("Escape")
                self.b.wait("it is closed", "!document.querySelector('dialog')")

    def a_token_that_was_taken_back_ends_it(self):
        self.host.forkyard("token", "rm", "page")
        self.b.click("#tree .name", "p")
        self.b.wait("the token is asked for anew", "document.querySelector('#login').checkVisibility()")
        self.b.wait("it is said why", "document.querySelector('#login-error').textContent.includes('token')")
        assert self.b.js("sessionStorage.length") == 0

    def the_browser_had_nothing_to_complain_of(self):
        assert self.b.complaints == [], "\n".join(self.b.complaints)


def steps(story):
    """All of them, in the order in which they are written."""
    own = [name for name in vars(Story) if "_" in name and not name.startswith("_")]
    return [(name.replace("_", " "), getattr(story, name)) for name in own if name != "notice_closed"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", default="target/dist", help="where the programs are")
    parser.add_argument("--pictures", help="folder for a picture of each view")
    parser.add_argument("--origin", default=f"https://127.0.0.1:{PORT}", help="where the page is served")
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("this test runs VMs: it needs root")
    if shutil.which("chromium") is None:
        raise SystemExit("there is no chromium: apt-get install --no-install-recommends chromium")
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if args.pictures:
        os.makedirs(args.pictures, exist_ok=True)
    cable = Cable()
    host = neighbour = None
    try:
        host = Host(args.dist, Cable.HERE)
        neighbour = Host(args.dist, Cable.THERE, cable.inside)
        neighbour.meet({"a": host})
        images = {image["name"]: image["built"] for image in json.loads(host.forkyard("image", "ls", "-o", "json"))}
        if images.get("tiny") is None:
            raise SystemExit("the image `tiny` has not been built, and here is no network: `forkyard image build tiny` first")
        browser = Chromium()
        try:
            browser.size(1280, 820)
            browser.scheme("light")
            for name, step in steps(Story(browser, host, neighbour, args.origin, args.pictures)):
                began = time.monotonic()
                step()
                print(f"ok  {time.monotonic() - began:5.1f} s  {name}", flush=True)
        except (Failed, AssertionError) as error:
            line = traceback.extract_tb(error.__traceback__)[1].line
            print(f"FAILED  {name}: {line}\n{error}\n--- the daemon's log ends:\n{host.log()[-2000:]}")
            if args.pictures:
                browser.picture(os.path.join(args.pictures, "failed.png"))
            raise SystemExit(1) from None
        finally:
            browser.close()
    finally:
        for one in (neighbour, host):
            if one:
                one.end()
        cable.end()


main()
