package picture

// Limit changes the maximum size of a cache.
func (s *VersionCache) Limit(bytes int) { s.maxBytes = bytes }
