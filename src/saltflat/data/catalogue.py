"""The data sets that saltflat knows by name: what they are, how they lie on disk, where they come from.

One table, and nothing but facts in it. A new data set is one file with its reader and its `Entry`, and one line here.
The row counts are the published ones: they are public numbers, and ``population`` of a plan may be taken from them.
"""

from __future__ import annotations

from functools import partial

from saltflat.data import cifar, idx, svhn
from saltflat.data.digits import read_digits
from saltflat.data.entry import Download, Entry, Form
from saltflat.data.folders import read_known
from saltflat.errors import InputError, nearest

_MNIST_HOSTS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION_HOSTS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
_MNIST_SHA256 = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION_SHA256 = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_EMNIST_PAGE = "https://www.nist.gov/itl/products-and-services/emnist-dataset"


def _four_files(
    name: str, title: str, classes: tuple[str, ...], hosts: tuple[str, ...], sums: tuple[str, ...],
    licence: str, source: str, folders: tuple[str, ...],
) -> Entry:  # fmt: skip
    downloads = tuple(
        Download(f"{file}.gz", tuple(f"{host}{file}.gz" for host in hosts), sha256=digest)
        for file, digest in zip(idx.MNIST_FILES, sums)
    )
    labels = {"mnist": _MNIST_SHA256[1], "fashion-mnist": _FASHION_SHA256[1]}
    others = {digest: other for other, digest in labels.items() if other != name}
    form = Form(idx.MNIST_FILES, partial(idx.read_mnist, classes=classes, others=others))
    return Entry(
        name, title, 60_000, 10_000, classes, (1, 28, 28), licence, source, (form,), name, folders, downloads
    )


def _cifar(
    name: str, title: str, kind: cifar.Kind, number: int, md5: str, pictures: tuple[Form, ...]
) -> Entry:
    binary, python = f"cifar-{number}-binary", f"cifar-{number}-python"
    batches = "cifar-10-batches" if number == 10 else "cifar-100"
    meta = ("batches.meta",) if number == 10 else ("meta",)
    folders = (
        f"{batches}-bin",
        f"{batches}-binary",
        f"{batches}-py",
        f"{batches}-python",
        f"cifar-{number}",
        name.upper(),
    )
    forms = (
        Form(tuple(f"{batch}.bin" for batch in kind.batches), partial(cifar.read_binary, kind=kind)),
        Form((f"{binary}.tar.gz",), partial(cifar.read_archive, kind=kind)),
        Form(kind.batches, partial(cifar.read_pickled, kind=kind), beside=meta),
        Form((f"{python}.tar.gz",), partial(cifar.read_archive, kind=kind)),
        *pictures,
    )
    address = f"https://www.cs.toronto.edu/~kriz/{binary}.tar.gz"
    return Entry(
        name, title, 50_000, 10_000, kind.classes, (3, 32, 32),
        "no licence stated; the authors ask to be cited", _CIFAR_PAGE,
        forms, name, folders, (Download(f"{binary}.tar.gz", (address,), md5=md5),),
    )  # fmt: skip


def _emnist(split: str) -> Entry:
    kind, read = idx.EMNIST_SPLITS[split], partial(idx.read_emnist, split=split)
    archive = Download(
        "gzip.zip",
        ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        md5="58c8d27c78d21e728a6bc7b3cc06412e",
    )
    return Entry(
        "emnist" if split == "balanced" else f"emnist-{split}", f"EMNIST ({split})",
        kind.train_rows, kind.test_rows, kind.classes, (1, 28, 28), "public domain (NIST)", _EMNIST_PAGE,
        (Form(idx.emnist_files(split), read), Form(("gzip.zip",), read), Form(("emnist-gzip.zip",), read)),
        "emnist", ("gzip", "EMNIST/raw"), (archive,),
    )  # fmt: skip


_read_pictures = partial(read_known, classes=cifar.CIFAR10.classes, title="CIFAR-10")
_CIFAR10_PICTURES = (
    Form(
        ("train", "test"),
        _read_pictures,
        "folders",
        beside=tuple(f"train/{c}" for c in cifar.CIFAR10.classes),
    ),
    Form(("cifar10-jpeg.tar.xz",), _read_pictures),
    Form(("cifar10-jpeg.tar.gz",), _read_pictures),
)
_SVHN = Entry(
    "svhn", "SVHN (cropped digits)", 73_257, 26_032, idx.DIGIT_CLASSES, (3, 32, 32),
    "non-commercial use only", "http://ufldl.stanford.edu/housenumbers/",
    (Form(svhn.SVHN_FILES, svhn.read_svhn),), "svhn", ("SVHN",),
    tuple(
        Download(file, (f"http://ufldl.stanford.edu/housenumbers/{file}",), md5=md5)
        for file, md5 in zip(
            svhn.SVHN_FILES, ("e26dedcc434d2e4c54c9b2d4a06d8373", "eb5a983be6a315427106f1b164d9cef3")
        )
    ),
)  # fmt: skip

_ENTRIES = (
    Entry(
        "digits", "Digits (8x8)", 1437, 360, idx.DIGIT_CLASSES, (1, 8, 8), "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/80, embedded in scikit-learn", (Form((), read_digits),),
    ),
    _four_files(
        "mnist", "MNIST", idx.DIGIT_CLASSES, _MNIST_HOSTS, _MNIST_SHA256,
        "CC BY-SA 3.0", "http://yann.lecun.com/exdb/mnist/", ("raw", "MNIST/raw", "MNIST"),
    ),
    _four_files(
        "fashion-mnist", "Fashion-MNIST", idx.FASHION_CLASSES, _FASHION_HOSTS, _FASHION_SHA256,
        "MIT", "https://github.com/zalandoresearch/fashion-mnist",
        ("raw", "FashionMNIST/raw", "FashionMNIST"),
    ),
    _cifar("cifar10", "CIFAR-10", cifar.CIFAR10, 10, "c32a1d4ab5d03f1284b67883e8d87530", _CIFAR10_PICTURES),
    _cifar("cifar100", "CIFAR-100", cifar.CIFAR100, 100, "03b5dce01913d631647c71ecec9e9cb8", ()),
    _SVHN,
    *(_emnist(split) for split in idx.EMNIST_SPLITS),
)  # fmt: skip

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
_ALIASES = {
    "fashionmnist": "fashion-mnist",
    "fmnist": "fashion-mnist",
    "cifar-10": "cifar10",
    "cifar-100": "cifar100",
    "emnist-balanced": "emnist",
}


def names() -> list[str]:
    """The data sets that `load` knows by name.

    >>> names()[:6]
    ['digits', 'mnist', 'fashion-mnist', 'cifar10', 'cifar100', 'svhn']
    """
    return list(CATALOGUE)


def known(name: str) -> Entry | None:
    """The entry of that name, however it is spelled, or None."""
    plain = name.lower().replace("_", "-")
    return CATALOGUE.get(_ALIASES.get(plain, plain))


def entry(name: str) -> Entry:
    """The entry of that name, or an error that suggests the nearest one."""
    found = known(name)
    if found is None:
        cure = nearest(name, names())
        raise InputError("name", name, "a data set that saltflat knows", problem="is not known", cure=cure)
    return found
