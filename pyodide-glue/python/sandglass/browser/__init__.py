"""The guest in a browser: Pyodide's end of the bridge to JavaScript."""
