"""Images of labels and uncertainty, plots of scores, and self-contained HTML pages."""

from messagenet.report.images import (
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
from messagenet.report.scores_page import ReportExample, write_report

__all__ = [
    "GalleryImage",
    "ReportExample",
    "class_shares_text",
    "contact_sheet",
    "entropy",
    "entropy_image",
    "gallery_figure",
    "image_sheet",
    "overlay",
    "palette_image",
    "png_bytes",
    "save_png",
    "write_gallery",
    "write_report",
]
