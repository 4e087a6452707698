package simulate

import (
	"fmt"
	"maps"
	"slices"

	"mariposa"
	"mariposa/store"
)

// networks contains the networks in the store and their attachments to nodes, as read
// from the feed.
type networks struct {
	all   map[string]*mariposa.NetworkSpec
	parts map[string]*mariposa.AttachmentSpec
}

func newNetworks() networks {
	return networks{all: map[string]*mariposa.NetworkSpec{}, parts: map[string]*mariposa.AttachmentSpec{}}
}

func (n networks) change(ch *store.Change) {
	switch spec := ch.Record.Spec.(type) {
	case *mariposa.NetworkSpec:
		if n.all[ch.Record.ID] = spec; ch.Deleted {
			delete(n.all, ch.Record.ID)
		}
	case *mariposa.AttachmentSpec:
		if n.parts[ch.Record.ID] = spec; ch.Deleted {
			delete(n.parts, ch.Record.ID)
		}
	}
}

// lacks returns what is missing for an instance to be on its networks: they must exist,
// its project must use them, and their attachment to its node must exist and be desired.
func (n networks) lacks(spec *mariposa.InstanceSpec) string {
	for _, j := range spec.Networks {
		network, part := n.all[j.Network], n.parts[j.Attachment]
		switch {
		case network == nil:
			return "missing network " + j.Name
		case !slices.Contains(network.Projects(), spec.Project):
			return "its project does not use the network " + j.Name
		case part == nil || part.Node != spec.Node || part.Network != j.Network:
			return fmt.Sprintf("network %s is not attached to %s", j.Name, spec.Node)
		case part.Goal != mariposa.GoalKept:
			return fmt.Sprintf("the attachment of network %s to %s is being removed", j.Name, spec.Node)
		}
	}
	return ""
}

// leftover returns a network or attachment that is no longer needed; empty: none. Ended
// instances that are kept still need their attachments.
func (n networks) leftover(c *checker) string {
	held := map[string]bool{}
	for _, r := range c.instances {
		for _, j := range r.Spec().Networks {
			held[j.Attachment] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(n.parts)) {
		part := n.parts[id]
		switch {
		case part.Goal == mariposa.GoalGone && !held[id]:
			return fmt.Sprintf("a part of network %s on %s is still to go", part.Name, part.Node)
		case part.Goal == mariposa.GoalKept && n.all[part.Network] == nil:
			return fmt.Sprintf("a part of network %s is on %s, and the network is gone", part.Name, part.Node)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(n.all)) {
		for _, project := range n.all[id].Projects() {
			if _, there := c.projects[project]; !there {
				return fmt.Sprintf("network %s is used by a project that is gone", n.all[id].Name)
			}
		}
	}
	return ""
}
