"""The routes, by what they are about. Each asks the graph and tells what it says; none decides anything itself."""

from starlette.convertors import register_url_convertor

from omnigraph.server.routing import SegmentConvertor

register_url_convertor("segment", SegmentConvertor())  # before any route is declared
