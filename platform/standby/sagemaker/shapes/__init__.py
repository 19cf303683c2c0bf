"""Requests and answers by AWS's own service models: nothing about a member is written by hand."""
