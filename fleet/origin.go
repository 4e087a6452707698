package fleet

import (
	"mariposa"
	"mariposa/store"
)

// Nodes keep where their instances came from, and report it for those in quarantine. A node
// may be hostile and claim to have instances that it never had, so servers sign the
// provenance of every instance that they assign, and believe only what they signed.

const originUse = "provenance of an instance" // of signatures

// signOrigin returns the provenance of an instance for its node; unsigned if this server has
// no keys.
func (f *Fleet) signOrigin(r *store.Instance) *mariposa.Provenance {
	spec := r.Spec()
	o := spec.Origin()
	if f.Ring != nil {
		o.Proof = f.Ring.Sign(originUse, o.SignedParts(f.identity.Cluster, spec.Node, r.ID, spec.Name)...)
	}
	return o
}

// IsOriginProven reports whether a server of this installation assigned a quarantined
// instance to the node that has it, with the provenance that the node reports. It may be
// called from any goroutine.
func (f *Fleet) IsOriginProven(node string, q mariposa.Quarantined) bool {
	return f.Ring != nil && q.Origin != nil && f.Ring.Verify(q.Origin.Proof, originUse, q.Origin.SignedParts(f.identity.Cluster, node, q.ID, q.Name)...)
}
