package manifest

// LineOf is the line on which a service of a manifest has a key, or an entry of its list
// where item is not negative. Where it is not there, it is the line of what should hold
// it; 0 where that is not known either. Without the name of a service, the document is
// the definition of a single one.
func LineOf(doc []byte, service, key string, item int) int {
	root, _ := read(Modernize(doc))
	if root == nil {
		return 0
	}
	at := rootSpot(root)
	if service != "" {
		services := at.child("services")
		if services == nil {
			return at.line
		}
		if at = services.child(service); at == nil {
			return services.line
		}
	}
	value := at.child(key)
	switch {
	case value == nil:
		return at.line
	case item >= 0 && value.kind() == kindList && item < len(value.node.Content):
		return value.item(item).line
	}
	return value.line
}
