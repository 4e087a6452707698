package change

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// foreignTimeout is how long a node may take to describe a container.
const foreignTimeout = 10 * time.Second

// AdoptContainer makes a foreign container of a node an unmanaged instance of a project. The
// container is named by its id, the beginning of its id, or its name, and stays as it is.
// Without a name, the instance is named after the container.
func (c *Changer) AdoptContainer(ctx context.Context, req *Request, project, node, container, name string) (*contract.Changed, error) {
	if name != "" {
		if err := mariposa.CheckName("instance", name); err != nil {
			return nil, err
		}
	}
	if c.Foreign == nil {
		return nil, conflict("no node has foreign containers")
	}
	return c.changeUnmanaged(ctx, req, project, func(e *edit) (newInstance, error) {
		on := c.Picture.Nodes.Get(node)
		if on == nil {
			return newInstance{}, notFound("the node no longer exists")
		}
		asking, cancel := context.WithTimeout(ctx, foreignTimeout) // other changes of the project wait meanwhile
		defer cancel()
		found, err := c.Foreign(asking, node, container)
		if err != nil {
			return newInstance{}, err
		}
		return e.adoptContainer(on, found, name)
	})
}

// adoptContainer describes the instance that a foreign container becomes. Its id follows from
// the container's, so that the store refuses to adopt one container twice.
func (e *edit) adoptContainer(on *store.Node, found mariposa.ForeignContainer, name string) (n newInstance, err error) {
	n = newInstance{id: adoptedID(found.ID), name: cmp.Or(name, instanceNameOf(found))}
	if known := e.c.Picture.Instances.Get(n.id); known != nil {
		return n, e.errAdopted(known, found)
	}
	document := map[string]any{"compute_type": mariposa.ComputeDocker, "image": found.Image}
	if found.Memory > 0 {
		document["memory"] = found.Memory
	}
	if found.MilliCPU > 0 {
		document["cpu"] = float64(found.MilliCPU) / 1000
	}
	if n.definition, err = json.Marshal(document); err != nil {
		return n, err
	}
	goal := mariposa.GoalRunning
	if !found.Running {
		goal = mariposa.GoalHalted
	}
	n.adopted = &mariposa.InstanceSpec{
		Node: on.ID, Goal: goal, Ports: found.Ports, Adopts: found.ID,
		Reason: mariposa.Asked(fmt.Sprintf("%s adopted the container %s of node %s", e.req.actor(), cmp.Or(found.Name, found.ID[:12]), on.Spec().Name)),
	}
	return n, nil
}

// errAdopted says which instance a container is. Only installation admins get here.
func (e *edit) errAdopted(known *store.Instance, found mariposa.ForeignContainer) error {
	spec := known.Spec()
	in := "another project"
	if p := e.c.Picture.Projects.Get(spec.Project); p != nil {
		in = "project " + p.Spec().Name
	}
	return conflict("the container %s is already adopted: it is instance %s of %s", cmp.Or(found.Name, found.ID[:12]), spec.Name, in)
}

// adoptedID returns the id of the instance that a container becomes.
func adoptedID(container string) string {
	b := sha256.Sum256([]byte("mariposa adopts container " + container))
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80 // a UUID of version 8
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// instanceNameOf returns a valid name of an instance for a container.
func instanceNameOf(c mariposa.ForeignContainer) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, c.Name)
	name = strings.Trim(name[:min(len(name), 63)], "-")
	if mariposa.CheckName("instance", name) != nil {
		return "container-" + c.ID[:12]
	}
	return name
}
