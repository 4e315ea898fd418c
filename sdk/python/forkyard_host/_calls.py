"""Requests of the API that are answered as a whole, and paths of the others. Sends nothing: both clients do."""

from __future__ import annotations

import json
import os
from typing import Any, Iterable, Mapping, NamedTuple, Sequence
from urllib.parse import quote, urlencode

from ._types import ForkyardError
from ._view import View

MOST_READ = 1 << 30
"""Most bytes that are read of a file at once."""


class Call(NamedTuple):
    """A request whose answer is JSON."""

    method: str
    path: str
    body: Any = None


def encoded(body: Any) -> bytes:
    """A body as JSON. TypeError or ValueError, in words, for what JSON cannot hold."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except UnicodeEncodeError as error:
        odd = error.object[max(0, error.start - 20) : error.end]
        raise ValueError(f"{odd!r} has bytes that are no text in UTF-8, and cannot be sent") from None
    except ValueError as error:
        raise ValueError(f"this cannot be sent as JSON: {error}") from None


def _plain(what: Any) -> str:
    if isinstance(what, os.PathLike) and isinstance(path := os.fspath(what), str):
        return path
    remedy = ": decode() makes text of it" if isinstance(what, (bytes, bytearray)) else ""
    raise TypeError(f"{what!r} cannot be sent: it is {type(what).__name__}, not text, a number, a list or a mapping{remedy}")


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} has bytes that are no text in UTF-8, and cannot be sent") from None


def _of(kind: str, name: str, rest: tuple[str, ...]) -> str:
    return f"/v1/{kind}/" + "/".join(_quoted(part) for part in (name, *rest))


def of_vm(vm: str, *rest: str) -> str:
    """The path of a VM, or of something it can do."""
    return _of("vms", vm, rest)


def of_substrate(name: str, *rest: str) -> str:
    """The path of a substrate, or of something that is done with it."""
    return _of("substrates", name, rest)


def of_volume(name: str, *rest: str) -> str:
    """The path of a volume, or of something that is done with it."""
    return _of("volumes", name, rest)


def of_image(name: str, *rest: str) -> str:
    """The path of an image, or of something that is done with it."""
    return _of("images", name, rest)


def of_files(vm: str, what: str, **query: str) -> str:
    """The path of a request about files of a VM."""
    return of_vm(vm, what) + "?" + "&".join(f"{name}={_quoted(value)}" for name, value in query.items())


def of_events(vm: str | None, family: str | None, kinds: Iterable[str], since: str | int | None, follow: bool) -> str:
    """The path of a stream of events."""
    kinds = [kinds] if isinstance(kinds, str) else kinds
    asked = {"vm": vm, "family": family, "kind": ",".join(kinds) or None, "since": since, "follow": flag(follow)}
    return "/v1/events?" + "&".join(f"{name}={quote(str(word), safe='')}" for name, word in asked.items() if word is not None)


def flag(set: bool) -> str:
    """A switch, as a query has it."""
    return "true" if set else "false"


def run(image: str, name: str | None, vcpus: int, memory: int, warm: int, more: Mapping[str, Any]) -> Call:
    """Boots a VM."""
    wanted = {"image": image, "name": name, "vcpus": vcpus, "memory": memory, "warm": warm, **more}
    if "memory_mib" in more:
        del wanted["memory"]
    return Call("POST", "/v1/vms", wanted)


def vms(labels: Mapping[str, str] | None, state: str | None, limit: int | None, after: View | None) -> Call:
    """Lists VMs."""
    # A filter separates labels by commas: `labelled` looks for one that has a comma itself.
    plain = [f"{name}={value}" for name, value in (labels or {}).items() if "," not in name + value]
    place = after and f"{after.view['created']}-{after.view['family']}-{after.view['member']}"
    asked = {"labels": ",".join(plain) or None, "state": state, "limit": limit, "after": place}
    query = urlencode({name: word for name, word in asked.items() if word is not None})
    return Call("GET", f"/v1/vms?{query}" if query else "/v1/vms")


def hosts() -> Call:
    """Lists other hosts."""
    return Call("GET", "/v1/hosts")


def usage() -> Call:
    """Asks for the use that VMs have made of the host."""
    return Call("GET", "/v1/usage")


def inspect(vm: str) -> Call:
    """Describes a VM in full."""
    return Call("GET", of_vm(vm, "inspect"))


def forks(vm: str) -> Call:
    """Lists forks of a VM."""
    return Call("GET", of_vm(vm, "forks"))


def labelled(views: list[dict[str, Any]], labels: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Those that have all these labels."""
    wanted = (labels or {}).items()
    return [view for view in views if wanted <= view.get("labels", {}).items()]


def vm(name: str) -> Call:
    """Describes a VM."""
    return Call("GET", of_vm(name))


def substrates() -> Call:
    """Lists substrates."""
    return Call("GET", "/v1/substrates")


def substrate(name: str) -> Call:
    """Describes a substrate."""
    return Call("GET", of_substrate(name))


def activate(
    name: str, count: int, vm: str | None, size: tuple[int | None, int | None, int | None], more: Mapping[str, Any]
) -> Call:
    """Makes VMs of a substrate, of this memory, so many vCPUs and this disk."""
    memory, vcpus, disk = size
    words = {"count": count, "name": vm, "memory": memory, "vcpus": vcpus, "disk": disk, **more}
    return Call("POST", of_substrate(name, "activate"), words)


def on_hosts(to: Sequence[str], spread: bool) -> dict[str, Any]:
    """Fields that name the hosts of VMs that are made."""
    return {**({"to": list(to)} if to else {}), **({"spread": True} if spread else {})}


def keep_standby(
    name: str, count: int | None, memory_mib: int, size: tuple[int | None, int | None, int | None]
) -> Call:
    """Keeps VMs of a substrate ready, of this memory, so many vCPUs and this disk."""
    memory, vcpus, disk = size
    words = {"count": count, "memory_mib": memory_mib, "vm_memory": memory, "vm_vcpus": vcpus, "vm_disk": disk}
    return Call("POST", of_substrate(name, "standby"), words)


def remove_substrate(name: str) -> Call:
    """Removes a substrate."""
    return Call("DELETE", of_substrate(name))


def _place(to: str) -> dict[str, str]:
    """A store by its address, or a folder of the host by its path."""
    return {"store" if "://" in to else "folder": to}


def push_substrate(name: str, to: str, verify: bool) -> Call:
    """Puts a substrate into a folder or a store."""
    return Call("POST", of_substrate(name, "push"), {**_place(to), "verify": verify})


def pull_substrate(place: str, name: str | None, trust: str | None) -> Call:
    """Brings a substrate in."""
    return Call("POST", "/v1/substrates/pull", {**_place(place), "name": name, "trust": trust})


def stored_substrates(store: str) -> Call:
    """Lists the substrates of a store."""
    return Call("GET", f"/v1/stores?{urlencode({'store': store})}")


def remove_stored_substrate(store: str, name: str) -> Call:
    """Removes a substrate from a store."""
    return Call("DELETE", f"/v1/stores?{urlencode({'store': store, 'name': name})}")


def dock(vm: str, name: str, kind: str, live: bool, more: Mapping[str, Any]) -> Call:
    """Makes a substrate of a VM."""
    return Call("POST", "/v1/substrates", {"vm": vm, "name": name, "kind": kind, "live": live, **more})


def volumes() -> Call:
    """Lists volumes."""
    return Call("GET", "/v1/volumes")


def volume(name: str) -> Call:
    """Describes a volume."""
    return Call("GET", of_volume(name))


def create_volume(name: str, size: int | None, image: str | None, encrypted: bool, key_file: str | None) -> Call:
    """Makes a volume."""
    asked: dict[str, Any] = {"name": name, "size": size, "image": image}
    if encrypted or key_file is not None:
        asked |= {"encrypted": encrypted, "key_file": key_file}
    return Call("POST", "/v1/volumes", asked)


def snapshot_volume(name: str, snapshot: str) -> Call:
    """Keeps a volume as it is."""
    return Call("POST", of_volume(name, "snapshots"), {"name": snapshot})


def remove_volume_snapshot(name: str, snapshot: str) -> Call:
    """Removes a snapshot of a volume."""
    return Call("DELETE", of_volume(name, "snapshots", snapshot))


def resize_volume(name: str, size: int) -> Call:
    """Gives a volume another size."""
    return Call("POST", of_volume(name, "resize"), {"size": size})


def volume_why(name: str, block: int) -> Call:
    """Tells why a block was sent, or was not."""
    return Call("GET", of_volume(name, "why") + f"?block={block:d}")


def tune_volume(name: str, k: float | None, s: float | None) -> Call:
    """Changes the law by which blocks are sent ahead."""
    return Call("POST", of_volume(name, "tune"), {"k": k, "s": s})


def mirror_volume(name: str, hosts: Iterable[str], away: str) -> Call:
    """Says which hosts every flush of a volume waits for."""
    return Call("POST", of_volume(name, "mirror"), {"hosts": list(hosts), "away": away})


def promote_volume(name: str) -> Call:
    """Makes a copy a volume that is at home here."""
    return Call("POST", of_volume(name, "promote"))


def move_volume(name: str, to: str, disk: str) -> Call:
    """Moves a volume to another host."""
    return Call("POST", of_volume(name, "move"), {"to": to, "disk": disk})


def bring_volume(name: str, from_host: str | None, disk: str) -> Call:
    """Moves a volume to the host that is asked."""
    return Call("POST", of_volume(name, "bring"), {"from": from_host, "disk": disk})


def links() -> Call:
    """Lists links to other hosts."""
    return Call("GET", "/v1/links")


def set_link_budget(host: str, budget: dict[str, Any]) -> Call:
    """Changes the budget of a link."""
    return Call("PUT", f"/v1/links/{quote(host, safe='')}/budget", budget)


def remove_volume(name: str) -> Call:
    """Removes a volume."""
    return Call("DELETE", of_volume(name))


def images() -> Call:
    """Lists images."""
    return Call("GET", "/v1/images")


def image(name: str) -> Call:
    """Describes an image."""
    return Call("GET", of_image(name))


def pull_image(reference: str, name: str, start: bool, size: int | None, size_mib: int | None) -> Call:
    """Makes an image of a container image."""
    return Call("POST", of_image(name, "pull"), {"reference": reference, "start": start, "size": size, "size_mib": size_mib})


def build_image(name: str, dockerfile: str, args: Mapping[str, str], size: int | None, start: bool) -> Call:
    """Makes an image from a Dockerfile; the context is the body."""
    asked = {"dockerfile": dockerfile, "build_args": encoded(dict(args)).decode() if args else None, "size": size, "start": flag(start)}
    query = urlencode({name: word for name, word in asked.items() if word is not None})
    return Call("PUT", of_image(name, "build") + "?" + query)


def commit_image(vm: str, name: str) -> Call:
    """Makes an image of a VM's disk."""
    return Call("POST", of_image(name, "commit"), {"vm": vm})


def remove_image(name: str) -> Call:
    """Removes an image."""
    return Call("DELETE", of_image(name))


def fork(vm: str, count: int, live: bool, more: Mapping[str, Any]) -> Call:
    """Forks a VM."""
    return Call("POST", of_vm(vm, "fork"), {"count": count, "mode": "live" if live else "fast", **more})


def checkpoint(vm: str, name: str | None, live: bool) -> Call:
    """Keeps this instant of a VM on disk."""
    return Call("POST", of_vm(vm, "checkpoint"), {"name": name, "mode": "live" if live else "fast"})


def migrate(vm: str, to: str, more: Mapping[str, Any]) -> Call:
    """Moves a VM to another host."""
    return Call("POST", of_vm(vm, "migrate"), {"to": to, **more})


def migrate_together(vms: Iterable[str], to: str, more: Mapping[str, Any]) -> Call:
    """Moves VMs to another host as one."""
    first, *others = vms
    return Call("POST", of_vm(first, "migrate"), {"to": to, "together": others, **more})


def schedule(vm: str, settings: Mapping[str, Any]) -> Call:
    """Has a VM's vCPUs scheduled."""
    return Call("PUT", of_vm(vm, "sched"), dict(settings))


def unschedule(vm: str) -> Call:
    """Lets a VM's vCPUs go."""
    return Call("DELETE", of_vm(vm, "sched"))


def scheduling(vm: str) -> Call:
    """Asks for the vCPUs that are scheduled on a VM's host."""
    return Call("GET", of_vm(vm, "sched"))


def make_friendly(vm: str, changes: Iterable[str], settings: Mapping[str, Any]) -> Call:
    """Has a guest adapt its demand."""
    return Call("PUT", of_vm(vm, "friendly"), {"changes": list(changes), **settings})


def end_friendly(vm: str) -> Call:
    """Ends that."""
    return Call("DELETE", of_vm(vm, "friendly"))


def friendly(vm: str) -> Call:
    """Asks for a guest's state as a friendly one."""
    return Call("GET", of_vm(vm, "friendly"))


def act(vm: str, verb: str) -> Call:
    """Has a VM do what needs no word more: pause, resume, start, stop, independence."""
    return Call("POST", of_vm(vm, verb))


def remove(vm: str) -> Call:
    """Removes a VM."""
    return Call("DELETE", of_vm(vm))


def sessions(vm: str) -> Call:
    """Lists commands that a VM keeps."""
    return Call("GET", of_vm(vm, "sessions"))


def kill_session(vm: str, pid: int, signal: int) -> Call:
    """Sends a command that a VM keeps a signal."""
    return Call("DELETE", of_vm(vm, "sessions", str(pid)) + f"?signal={int(signal)}")


def keepalive(vm: str, ttl: int | None, action: str | None) -> Call:
    """Says for how long a VM is wanted."""
    path = of_vm(vm, "lifetime")
    return Call("DELETE", path) if ttl is None else Call("POST", path, {"ttl_s": ttl, "action": action})


def idle(vm: str, after: int | None, action: str) -> Call:
    """Says what becomes of a VM that is not used."""
    path = of_vm(vm, "idle")
    return Call("DELETE", path) if after is None else Call("POST", path, {"after_s": after, "action": action})


def set_restart(vm: str, restart: str) -> Call:
    """Says whether a VM is started again."""
    return Call("POST", of_vm(vm, "restart-policy"), {"restart": restart})


def egress(vm: str, out: str, allow: Iterable[str], deny: Iterable[str]) -> Call:
    """Says what the VMs of a family may reach."""
    return Call("POST", of_vm(vm, "egress"), {"out": out, "allow": list(allow), "deny": list(deny)})


def share(vm: str, port: int, expires: int, note: str) -> Call:
    """Makes a token for a port."""
    return Call("POST", of_vm(vm, "shares"), {"port": port, "expires_s": expires, "note": note})


def shares(vm: str) -> Call:
    """Lists tokens for ports."""
    return Call("GET", of_vm(vm, "shares"))


def unshare(vm: str, share: str) -> Call:
    """Takes a token back."""
    return Call("DELETE", of_vm(vm, "shares", share))


def rename(vm: str, name: str) -> Call:
    """Gives a VM another name."""
    return Call("POST", of_vm(vm, "rename"), {"name": name})


def publish(vm: str, ports: Iterable[str]) -> Call:
    """Has ports of the host lead to a VM."""
    return Call("POST", of_vm(vm, "published"), {"ports": list(ports)})


def unpublish(vm: str, port: int | str, transport: str) -> Call:
    """Closes a port of the host, or takes an address from a VM."""
    return Call("DELETE", of_vm(vm, "published", str(port)) + f"?transport={transport}")


def set_labels(vm: str, labels: Mapping[str, str]) -> Call:
    """Replaces a VM's labels."""
    return Call("POST", of_vm(vm, "labels"), dict(labels))


def read(vm: str, path: str, offset: int, limit: int | None) -> str:
    """The path of a file's content."""
    for name, bytes_ in (("offset", offset), ("limit", limit)):
        if bytes_ is not None and bytes_ < 0:
            raise ValueError(f"{name} is a count of bytes, 0 or more, not {bytes_}")
    # One more than is taken tells whether that was all.
    most = MOST_READ + 1 if limit is None else limit
    return of_files(vm, "files", path=path, offset=str(offset), limit=str(most))


class Content:
    """What comes of a file. ForkyardError as soon as that is more than is taken: files of guests need have no end."""

    def __init__(self, path: str, limit: int | None) -> None:
        self._path = path
        self._most = MOST_READ if limit is None else limit
        self._got = bytearray()

    def add(self, piece: bytes) -> None:
        """Takes the next piece."""
        self._got += piece
        if len(self._got) > self._most:
            why = f"{self._path} has more than {self._most} bytes"
            raise ForkyardError("exhausted", why, "read it in parts, by offset and limit, or copy it by get")

    def whole(self) -> bytes:
        """All of it, at the end."""
        return bytes(self._got)


def write(vm: str, path: str, mode: int | None, parents: bool) -> str:
    """The path that a file's content is sent to."""
    more = {} if mode is None else {"mode": f"{mode:o}"}
    return of_files(vm, "files", path=path, parents=flag(parents), **more)


def stat(vm: str, path: str) -> Call:
    """Asks for facts of a file."""
    return Call("GET", of_files(vm, "stat", path=path))


def folder(vm: str, path: str) -> Call:
    """Lists a folder."""
    return Call("GET", of_files(vm, "folder", path=path))


def make_folder(vm: str, path: str) -> Call:
    """Makes a folder."""
    return Call("PUT", of_files(vm, "folder", path=path))


def remove_file(vm: str, path: str, recursive: bool) -> Call:
    """Removes a file or folder."""
    return Call("DELETE", of_files(vm, "files", path=path, recursive=flag(recursive)))


def move(vm: str, path: str, to: str) -> Call:
    """Moves a file or folder."""
    return Call("POST", of_files(vm, "move", path=path, to=to))
