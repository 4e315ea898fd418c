"""Inputs of the programs that bench/apps measures: made up, and the same every time."""

import random

PROTEIN = "ACDEFGHIKLMNPQRSTVWY"


def word(dice, letters, length):
    return "".join(dice.choices(letters, k=length))


def mutated(dice, text, letters, part):
    return "".join(dice.choice(letters) if dice.random() < part else letter for letter in text)


def evolved(dice, letters, length, count, part):
    """Relatives of one sequence: each new one is made of one that is there."""
    all_of_them = [word(dice, letters, length)]
    while len(all_of_them) < count:
        all_of_them.append(mutated(dice, dice.choice(all_of_them), letters, part))
    return all_of_them


def fasta(names, sequences):
    return "".join(f">{name}\n{sequence}\n" for name, sequence in zip(names, sequences))


def mrbayes(generations, taxa=16, sites=600):
    """A tree of so many species: one run of four chains, which is the most that four ranks have work for."""
    dice = random.Random(1)
    rows = [f"t{n} {it}\n" for n, it in enumerate(evolved(dice, "ACGT", sites, taxa, 0.08))]
    return (
        f"#NEXUS\nbegin data; dimensions ntax={taxa} nchar={sites}; format datatype=dna;\nmatrix\n{''.join(rows)};\nend;\n"
        "begin mrbayes; set autoclose=yes nowarn=yes seed=1 swapseed=1;\nlset nst=6 rates=gamma;\n"
        f"mcmc ngen={generations} nruns=1 nchains=4 samplefreq=100 printfreq={generations} diagnfreq={generations};\nend;\n"
    )


def blast(sequences, queries, per_query=2, length=400):
    """A library of proteins, and files of queries, each like some of them: by name."""
    dice = random.Random(2)
    library = [word(dice, PROTEIN, length) for _ in range(sequences)]
    files = {"library.fa": fasta((f"lib{n}" for n in range(sequences)), library)}
    for number in range(queries):
        asked = [mutated(dice, dice.choice(library), PROTEIN, 0.4) for _ in range(per_query)]
        files[f"q{number:02}.fa"] = fasta((f"q{number}.{n}" for n in range(per_query)), asked)
    return files


def clustalw(families, members=10, length=200):
    """Families of related proteins to align, a file each."""
    dice = random.Random(3)
    return {
        f"f{number:02}.fa": fasta((f"m{n}" for n in range(members)), evolved(dice, PROTEIN, length, members, 0.2))
        for number in range(families)
    }


def tachyon(pictures, spheres=60, size=160):
    """A film: spheres that move, a picture in a file each."""
    dice = random.Random(4)
    places = [[dice.uniform(-2, 2) for _ in range(3)] for _ in range(spheres)]
    films = {}
    for number in range(pictures):
        scene = [
            f"BEGIN_SCENE\nRESOLUTION {size} {size}\n",
            "CAMERA\nZOOM 1.0\nASPECTRATIO 1.0\nANTIALIASING 1\nRAYDEPTH 6\nCENTER 0 0 -6\nVIEWDIR 0 0 1\nUPDIR 0 1 0\nEND_CAMERA\n",
            "LIGHT CENTER 4 4 -6 RAD 0.2 COLOR 1 1 1\n",
        ]
        for x, y, z in places:
            scene.append(
                f"SPHERE CENTER {x + 0.05 * number:.3f} {y:.3f} {z:.3f} RAD 0.35\n"
                "TEXTURE AMBIENT 0.1 DIFFUSE 0.6 SPECULAR 0.3 OPACITY 1.0\nCOLOR 0.9 0.4 0.2\nTEXFUNC 0\n"
            )
        films[f"p{number:02}.dat"] = "".join(scene) + "END_SCENE\n"
    return films


def quantlib(books, options=4):
    """Options to price, some a file: strike, volatility and days to run."""
    dice = random.Random(5)
    one = lambda: f"{dice.uniform(80, 120):.2f} {dice.uniform(0.1, 0.6):.3f} {dice.randrange(60, 720)}\n"
    return {f"o{number:02}.txt": "".join(one() for _ in range(options)) for number in range(books)}


def lammps(steps):
    """Molecular dynamics: a Lennard-Jones fluid of 2,048 atoms, as in LAMMPS's own example of melting."""
    return (
        "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 8 0 8 0 8\ncreate_box 1 box\ncreate_atoms 1 box\n"
        "mass 1 1.0\nvelocity all create 3.0 87287 loop geom\npair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\n"
        f"neighbor 0.3 bin\nfix 1 all nve\nthermo {steps}\nthermo_style custom step temp press\nrun {steps}\n"
    )
