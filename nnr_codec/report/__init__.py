"""Reports on encoded models: sizes, distortion and tools of each tensor (docs/guides/reports.md)."""
