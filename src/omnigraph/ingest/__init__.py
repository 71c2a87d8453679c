"""Bulk load and export: conversion, key checks and the commit, in this process or by an executor."""
