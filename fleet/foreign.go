package fleet

import (
	"context"
	"encoding/json"
	"io"
	"regexp"
	"slices"

	"mariposa"
	"mariposa/wire"
)

const (
	// maxForeignList bounds a node's list of foreign containers, in bytes.
	maxForeignList = 2 << 20
	// maxForeignPorts bounds the ports of one.
	maxForeignPorts = 256
)

var containerIDs = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ForeignContainers lists the foreign containers of a node, the newest first, and says how many
// there are.
func (f *Fleet) ForeignContainers(ctx context.Context, node string) (all []mariposa.ForeignContainer, total int, err error) {
	said, err := f.askForeign(ctx, node, wire.ForeignQuery{})
	return said.Containers, max(said.Total, len(said.Containers)), err
}

// ForeignContainer returns a foreign container of a node with its limits, by id, the beginning of
// its id, or name.
func (f *Fleet) ForeignContainer(ctx context.Context, node, ref string) (mariposa.ForeignContainer, error) {
	said, err := f.askForeign(ctx, node, wire.ForeignQuery{Container: ref})
	if err == nil && len(said.Containers) != 1 {
		err = mariposa.Errorf(mariposa.Unavailable, "the node gave an invalid answer about the container %q", ref)
	}
	if err != nil {
		return mariposa.ForeignContainer{}, err
	}
	return said.Containers[0], nil
}

func (f *Fleet) askForeign(ctx context.Context, node string, q wire.ForeignQuery) (said wire.Foreign, err error) {
	r, err := f.read(ctx, node, wire.Open{Foreign: &q})
	if err != nil {
		return said, err
	}
	defer r.Close()
	if err := json.NewDecoder(io.LimitReader(timedReader{r}, maxForeignList)).Decode(&said); err != nil {
		return wire.Foreign{}, err
	}
	said.Containers = slices.DeleteFunc(said.Containers, func(c mariposa.ForeignContainer) bool { return !containerIDs.MatchString(c.ID) })
	said.Containers = said.Containers[:min(len(said.Containers), wire.MaxForeign)]
	for n := range said.Containers {
		boundForeign(&said.Containers[n])
	}
	said.Total = min(max(0, said.Total), 1<<20)
	return said, nil
}

// boundForeign cuts what a node says of a container: it may be hostile.
func boundForeign(c *mariposa.ForeignContainer) {
	var cut cutter
	const what = "its foreign containers"
	c.Name, c.Image, c.State = cut.text(c.Name, maxWord, what), cut.text(c.Image, maxDetail, what), cut.text(c.State, 64, what)
	c.Addresses = cut.list(c.Addresses, maxAddresses, maxAddress, what)
	c.Ports = slices.DeleteFunc(c.Ports, func(p int) bool { return p < 1 || p > 65535 })
	c.Ports = c.Ports[:min(len(c.Ports), maxForeignPorts)]
	c.Memory, c.MilliCPU = min(max(0, c.Memory), maxCapacity), min(max(0, c.MilliCPU), maxCapacity)
	if c.Created = c.Created.UTC(); !mariposa.IsPlausibleTime(c.Created) {
		c.Created = mariposa.ForeignContainer{}.Created
	}
}
