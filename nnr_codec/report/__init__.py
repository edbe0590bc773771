"""Reports of encodings: sizes, distortion and tools of each tensor, as JSON and HTML (docs/guides/reports.md)."""
