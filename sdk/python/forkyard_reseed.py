"""Has the module `random` differ in every clone of this virtual machine.

Loaded by every Python program of a guest, through forkyard_reseed.pth, and does
nothing until `random` is imported. Then it tells the guest's agent where the state
of the module's generator is, by a table in a private mapping of
/opt/forkyard/generators; the agent overwrites it in every clone before any user
code goes on. So a clone is to `random` what a child of os.fork() is: the module's
own generator starts anew, whether or not it was seeded; generators that a program
made itself are the program's to seed.
"""

import sys

_FOLDER = "/opt/forkyard/"
_PAGE = 4096


class _Finder:
    """Lets others find `random`, and has a look at it once it is there."""

    def find_spec(self, name, path=None, target=None):
        if name != "random":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _register(module)

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            pass  # A loader that cannot be told: a clone's numbers are its parent's.
        return spec


def _register(random):
    try:
        page = _table(random._inst)
        if page is not None:
            _forget_gauss(random, page)
    except (AttributeError, ImportError, OSError, ValueError):
        pass  # Another Python than is known here, or a program that may not look at itself.


def _table(generator):
    """Registers the generator's words; the mapping, or None if they are not found."""
    import mmap
    from struct import pack

    words = generator.getstate()[1][:-1]
    state = pack(f"={len(words)}I", *words)
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(id(generator))
        place = memory.read(type(generator).__basicsize__).find(state)
    if place < 0:
        return None
    with open(_FOLDER + "generators", "rb", buffering=0) as file:
        page = mmap.mmap(file.fileno(), _PAGE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    page[8:32] = pack("=QQQ", 1, id(generator) + place, len(state))
    page[:8] = b"forkyard"  # Last: what is there now is a table.
    return page


def _forget_gauss(random, page):
    """gauss() draws two numbers at a time and keeps one: a clone must not use it."""
    import mmap

    with open(_FOLDER + "epoch", "rb", buffering=0) as file:
        epoch = mmap.mmap(file.fileno(), _PAGE, mmap.MAP_SHARED, mmap.PROT_READ)
    generator, draw = random._inst, random.gauss
    seen = epoch[:16]

    def gauss(mu=0.0, sigma=1.0):
        nonlocal seen
        now = epoch[:16]
        if now != seen:
            seen = now
            generator.gauss_next = None
        return draw(mu, sigma)

    gauss.__doc__ = draw.__doc__
    # The table lives as long as the module does.
    gauss.registration = page
    random.gauss = gauss


if "random" in sys.modules:
    _register(sys.modules["random"])
else:
    sys.meta_path.insert(0, _Finder())
