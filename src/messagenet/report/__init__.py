"""Images of labels and uncertainty, plots of scores, and self-contained HTML pages."""

from messagenet.report.images import (
    colourise,
    contact_sheet,
    entropy,
    entropy_image,
    image_sheet,
    overlay,
    palette_image,
    png_bytes,
    save_png,
)
from messagenet.report.page import GalleryImage, class_shares_text, gallery_figure, write_gallery
from messagenet.report.plots import class_iou_plot, confusion_plot, reliability_plot, trimap_plot
from messagenet.report.scores_page import ReportExample, write_report

__all__ = [
    "GalleryImage",
    "ReportExample",
    "class_iou_plot",
    "class_shares_text",
    "colourise",
    "confusion_plot",
    "contact_sheet",
    "entropy",
    "entropy_image",
    "gallery_figure",
    "image_sheet",
    "overlay",
    "palette_image",
    "png_bytes",
    "reliability_plot",
    "save_png",
    "trimap_plot",
    "write_gallery",
    "write_report",
]
