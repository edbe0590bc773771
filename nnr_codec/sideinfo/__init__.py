"""Side information: model properties that NNR cannot represent (docs/side-information.md), and their application."""
