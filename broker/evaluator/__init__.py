"""The trusted evaluator of LibreCAD hosts: facts and a canonical render of one DXF drawing. It never judges."""
