"""What became of a model: sizes, distortion and tools of each tensor, as JSON and as a page (docs/reports.md)."""
