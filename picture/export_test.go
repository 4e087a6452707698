package picture

// Limit lets a cache keep versions up to another size.
func (s *VersionCache) Limit(bytes int) { s.maxBytes = bytes }
