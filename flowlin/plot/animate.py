"""Films of training."""

import os
import pathlib
from collections.abc import Callable

import matplotlib.pyplot as plt
from matplotlib import animation
from matplotlib.figure import Figure

from flowlin._tools.arguments import checked, function_of, integer_from, positive
from flowlin._tools.printing import tqdm_bar
from flowlin.plot.style import tuple_of


@checked(
    draw=function_of("figure", "k"),
    frames=integer_from(1),
    size=tuple_of(2, positive, "two numbers, (width, height) in inches"),
    fps=positive,
    dpi=integer_from(1),
)
def animate(
    draw: Callable[[Figure, int], object],
    frames: int,
    path: str | os.PathLike[str],
    *,
    size: tuple[float, float] = (8.0, 4.0),
    fps: float = 15.0,
    dpi: int = 100,
    progress: bool = False,
) -> pathlib.Path:
    """Make a film whose frames a function draws, as GIF or MP4.

    ```python
    ts = np.linspace(0, float(flow.end), 100)

    def draw(figure, k):
        left, right = figure.subplots(1, 2)
        fl.plot.activity(flow, left)
        left.axvline(ts[k], color="black")
        fl.plot.sides(flow, ts[k], right)

    fl.plot.animate(draw, len(ts), "training.gif", progress=True)
    ```

    **Arguments:**

    - `draw`: `draw(figure, k)` draws frame k = 0 ... frames - 1 on the figure, which is empty
      again at every frame. Set the limits of axes that shall not move.
    - `frames`: how many.
    - `path`: a name that ends in `.gif` (written by Pillow) or `.mp4` (by ffmpeg).
    - `size`: of the figure in inches; a frame has `size * dpi` pixels.
    - `fps`: frames per second.
    - `dpi`: pixels per inch.
    - `progress`: a tqdm bar over the frames.

    **Returns:** the path.

    **Raises:** `ValueError` for another ending or no frames; `RuntimeError` for `.mp4` where
    ffmpeg is not installed; `ImportError` for `progress=True` without tqdm.
    """
    path = pathlib.Path(path)
    writer = _film_writer(path, fps)
    bar = tqdm_bar(frames, unit="frame") if progress else None
    figure = plt.figure(figsize=size, layout="constrained")
    try:
        draw(figure, 0)  # before the writer, which hides an error at its first frame
        with writer.saving(figure, str(path), dpi):
            for k in range(frames):
                if k:
                    figure.clear()
                    draw(figure, k)
                writer.grab_frame()
                if bar is not None:
                    bar.update()
    finally:
        plt.close(figure)
        if bar is not None:
            bar.close()
    return path


def _film_writer(path: pathlib.Path, fps: float) -> animation.AbstractMovieWriter:
    """Return the writer of files of this ending."""
    if path.suffix == ".gif":
        return animation.PillowWriter(fps=fps)  # pyright: ignore[reportArgumentType]
    if path.suffix != ".mp4":
        raise ValueError(f"`path` must end in .gif or .mp4, got {path.name!r}.")
    if not animation.FFMpegWriter.isAvailable():
        raise RuntimeError("`.mp4` needs ffmpeg on the PATH: install it, or write a `.gif`.")
    return animation.FFMpegWriter(fps=fps)  # pyright: ignore[reportArgumentType]
