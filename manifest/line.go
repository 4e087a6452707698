package manifest

// LineOf returns the line of a key of a service in a manifest, or of an entry of the
// key's list if item is not negative. If it is absent, LineOf returns the line of what
// should contain it; 0 if that is unknown too. If service is empty, the document is the
// definition of a single service.
func LineOf(doc []byte, service, key string, item int) int {
	root, _ := read(Modernize(doc))
	if root == nil {
		return 0
	}
	at := rootSpot(root)
	if service != "" {
		services, balancers := at.child("services"), at.child("load_balancers")
		if services == nil {
			return at.line
		}
		at = services.child(service)
		if at == nil && balancers != nil { // it runs a load balancer
			at = balancers.child(service)
		}
		if at == nil {
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
