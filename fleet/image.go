package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

const (
	// resolveTimeout is how long the nodes may take to find out what images mean.
	resolveTimeout = 6 * time.Second
	// maxResolvers is how many nodes are asked, one after the other.
	maxResolvers = 3
	// maxPins bounds the size of a node's answer, in bytes.
	maxPins = 256 << 10
)

var digests = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// ResolveImages asks nodes with a Docker engine what names of images mean now. The engines know
// the way to the registries, and they will fetch the images from there too. A few nodes are
// asked at once: one may be slow, or not reach a registry. What cannot be resolved has the
// reason.
func (f *Fleet) ResolveImages(ctx context.Context, logins []mariposa.Login, names []string) map[string]mariposa.ImagePin {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	nodes := f.resolvers()
	answers := make(chan map[string]mariposa.ImagePin, len(nodes))
	for _, node := range nodes {
		go func() { // ends with the context
			pins, err := f.askImages(ctx, node.ID, logins, names)
			if err != nil && ctx.Err() == nil {
				slog.Warn("a node does not say what images mean", "node", node.Spec().Name, "err", err)
			}
			answers <- pins
		}()
	}
	why := "no node with a Docker engine is connected"
	if len(nodes) > 0 {
		why = "no node said in time what it means"
	}
	pins, open := map[string]mariposa.ImagePin{}, len(names)
	for _, name := range names {
		pins[name] = mariposa.ImagePin{Why: why}
	}
	for range nodes {
		var said map[string]mariposa.ImagePin
		select {
		case said = <-answers:
		case <-ctx.Done():
			return pins
		}
		for name, pin := range said {
			switch {
			case pins[name].Digest != "":
			case pin.Digest != "":
				open--
				pins[name] = pin
			case pins[name].Why == why:
				pins[name] = pin
			}
		}
		if open == 0 {
			break
		}
	}
	return pins
}

// resolvers returns nodes to ask: first those that are connected to this replica.
func (f *Fleet) resolvers() []*store.Node {
	var all []*store.Node
	for _, r := range f.Picture.Nodes.All() {
		st := r.Status()
		if st == nil || st.State != mariposa.NodeRunning || r.Spec().Lost || !slices.Contains(st.Drivers, mariposa.ComputeDocker) ||
			st.Offers[mariposa.ComputeDocker].Unavailable != "" || !f.Reachable(r) {
			continue
		}
		all = append(all, r)
	}
	elsewhere := func(r *store.Node) int {
		if _, s := f.LastHeard(r.ID); s == nil {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b *store.Node) int { return cmp.Compare(elsewhere(a), elsewhere(b)) })
	return all[:min(maxResolvers, len(all))]
}

func (f *Fleet) askImages(ctx context.Context, node string, logins []mariposa.Login, names []string) (map[string]mariposa.ImagePin, error) {
	r, err := f.read(ctx, node, wire.Open{Images: names, Logins: logins})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var said map[string]mariposa.ImagePin
	if err := json.NewDecoder(io.LimitReader(timedReader{r}, maxPins)).Decode(&said); err != nil {
		return nil, err
	}
	pins := map[string]mariposa.ImagePin{}
	for _, name := range names { // a node may be hostile
		pin := said[name]
		switch {
		case digests.MatchString(pin.Digest):
			pin.Why, pin.ImageLabels = "", pin.ImageLabels.Clean()
		case pin.Digest != "":
			pin = mariposa.ImagePin{Why: "its node gave an invalid digest"}
		default:
			pin = mariposa.ImagePin{Why: strings.TrimSpace(clean(shorten(cmp.Or(pin.Why, "its node does not know it"), maxReason)))}
		}
		pins[name] = pin
	}
	return pins, nil
}
