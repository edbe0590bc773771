"""Bitstream layer: conversion between syntax structures or coded tensors and the bytes of units and payloads."""
