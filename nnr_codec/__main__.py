"""Entry point of ``python -m nnr_codec``, the same as the ``nnr`` command."""

if __name__ == "__main__":
    from nnr_cli.main import main

    main()
