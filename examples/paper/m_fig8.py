"""Lead paper, Fig. 8: CIFAR-10 in grey with both preprocessings: biases align linear and ReLU
networks early in both, and input constants do not suffice.

The paper: H = 1,024, variance 2e-4, batches of 64, learning rate 2e-4 and, as nothing else is said,
c = 10; the caption speaks of MNIST and of "linear and linear networks" (erratum B.16). Run here at
this width with 3 seeds on a stratified subset of 3,000 images (`--full`: 5 seeds, all 50,000):
descent, and for one seed gradient flow. The early phase is some 300 steps or 7 passes through this
subset; the ReLU network's fit to single images only begins in it.

Left open: grey (here the luma .299 R + .587 G + .114 B), batch sum (run) or mean, the linear
network's width (that of the ReLU network, and half of it). Modes are those of all images.
"""

from typing import Any

from _images import QUICK, Setting
from _images_show import followed
from _paper import Row, Study
from _preprocessed import GLOBAL, HOW, PIXEL, Data, aligned, compute, constants, draw, numbers
from _preprocessed import sooner as parts_sooner

SIZE: dict[str, Any] = {
    "data": "cifar10",
    "hidden": (1024,),
    "learning_rate": 2e-4,
    "every": 12,
    "mean_seeds": 0,
}


def judge(data: Data) -> list[Row]:
    """The claims of the caption and of App. C.2."""
    names = {PIXEL: "A", GLOBAL: "B"}
    rows = []
    for how in HOW:
        source = f"M Fig. 8{names[how]}"
        rows += [
            aligned(data, how, "bias", f"{how}: with bias the early losses agree", source),
            aligned(data, how, "no bias", f"{how}: without bias they do not", source, wanted=False),
            parts_sooner(data, how, f"{how}: losses part sooner without bias", source),
        ]
    phases = {f"{how}, {p}": data.phases[how, p] for how in HOW for p in ("bias", "no bias")}
    return [
        *rows,
        constants(data, "Input constants of CIFAR-10 make the mean's mode the first", "M Fig. 8B"),
        followed(data.size, phases),
    ]


SIZES = {
    "quick": Setting(**SIZE | QUICK),
    "default": Setting(**SIZE, samples=3_000, seeds=3),
    "full": Setting(**SIZE, samples=None),
}
STUDY = Study("m_fig8", SIZES, compute, draw, numbers, judge, heavy=True)

if __name__ == "__main__":
    STUDY.main(__doc__)
