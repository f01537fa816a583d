"""Lead paper, Fig. 7: MNIST with the classic preprocessing, one mean and one standard deviation
over all pixels: linear and ReLU networks agree early with bias and without.

The paper: H = 512, variance 2e-4, c = 10, batches of 64, learning rate 5e-4. Run here at this width
with 5 seeds on a stratified subset of 5,000 images (`--full`, as committed: all 60,000): descent of
all networks and the flow of linear ones. Beside it, on the same images, with every pixel's own mean
subtracted, as in Fig. 1.

The text leaves open whether the rate is for the batch's sum or mean and how wide the linear network
is: see `_images.py`. With the sum, a step is 1/31 of a unit of flow time, which is coarse for the
first mode of these inputs; descent on the mean is run for three seeds, up to flow time 1, and
stands for the ReLU network's flow. Modes are those of all images.
"""

from _images import QUICK, Setting
from _images_rows import followed, independent, indifferent
from _paper import Row, Study
from _preprocessed import GLOBAL, PIXEL, Data, compute, draw, modes_at_0, numbers


def judge(data: Data) -> list[Row]:
    """The claims of App. C.1 and the caption."""
    phases, found = data.phases[GLOBAL], data.modes[GLOBAL][0.0]
    first = found["bias mode rank"] == 1 and found["overlap"] > 0.99
    return [
        independent(
            phases,
            "Classic preprocessing: early losses align with bias and without",
            "M Fig. 7, App. C.1",
        ),
        indifferent(
            phases,
            "Bias terms play no fundamental role there: as close without as with",
            "M App. C.1",
        ),
        Row(
            "Input constants act as a bias: the first mode is the mean's, at c = 0 too",
            "M App. C.1",
            f"{modes_at_0(data, GLOBAL)}; {modes_at_0(data, PIXEL)}; criterion: first, overlap "
            "above .99",
            "holds" if first else "does not hold",
        ),
        followed(data.size, phases, "M Sec. 4, App. E"),
    ]


SIZES = {
    "quick": Setting(**QUICK, mean_seeds=2),
    "default": Setting(mean_seeds=3),
    "full": Setting(samples=None, mean_seeds=3),
}
STUDY = Study("m_fig7", SIZES, compute, draw, numbers, judge, heavy=True)

if __name__ == "__main__":
    STUDY.main(__doc__)
