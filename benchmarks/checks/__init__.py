"""Is a system the real thing? Its authors' figure, measured again under its authors' own protocol."""
