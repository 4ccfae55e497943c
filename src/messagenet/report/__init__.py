"""Results to look at: pictures of labels, plots of scores, and self-contained HTML pages."""

from messagenet.report.images import (
    colourise,
    contact_sheet,
    entropy,
    entropy_picture,
    overlay,
    palette_image,
    picture_sheet,
    png_bytes,
    save_palette_png,
    save_png,
)
from messagenet.report.page import Segmented, found_text, write_gallery
from messagenet.report.plots import class_iou_plot, confusion_plot, reliability_plot, trimap_plot
from messagenet.report.scores_page import Example, write_report

__all__ = [
    "Example",
    "Segmented",
    "class_iou_plot",
    "colourise",
    "confusion_plot",
    "contact_sheet",
    "entropy",
    "entropy_picture",
    "found_text",
    "overlay",
    "palette_image",
    "picture_sheet",
    "png_bytes",
    "reliability_plot",
    "save_palette_png",
    "save_png",
    "trimap_plot",
    "write_gallery",
    "write_report",
]
