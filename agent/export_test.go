package agent

// All returns the servers that a link tries.
func (l Link) All() []string { return l.all() }
