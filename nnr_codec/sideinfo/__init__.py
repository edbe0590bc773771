"""Side information: model properties that NNR cannot represent; see docs/reference/side-information.md."""
