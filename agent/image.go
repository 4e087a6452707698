package agent

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

const (
	// resolveTimeout is how long a registry may take to say what a name means.
	resolveTimeout = 4 * time.Second
	// maxResolving bounds how many names are resolved at once.
	maxResolving = 8
)

// resolveImages sends what names of images mean on this node.
func (s *streams) resolveImages(ctx context.Context, st *wire.Stream, o *wire.Open) error {
	if o.Ack {
		if err := st.Send(wire.Message{Ack: true}); err != nil {
			return err // the peer is gone
		}
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	all := map[string]mariposa.ImagePin{}
	var mu sync.Mutex
	var each sync.WaitGroup
	turns := make(chan struct{}, maxResolving)
	for _, name := range o.Images {
		each.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			pin := s.n.resolveImage(ctx, name, o.Logins)
			mu.Lock()
			defer mu.Unlock()
			all[name] = pin
		})
	}
	each.Wait()
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	_, err = st.Write(b)
	return err
}

func (n *Node) resolveImage(ctx context.Context, name string, logins []mariposa.Login) mariposa.ImagePin {
	for _, d := range n.Drivers {
		r, ok := d.(driver.Resolver)
		if !ok || d.Compute() != mariposa.ComputeDocker {
			continue
		}
		var login *mariposa.Login
		if at := slices.IndexFunc(logins, func(l mariposa.Login) bool { return l.Registry == mariposa.RegistryOf(name) }); at >= 0 {
			login = &logins[at]
		}
		pin, err := r.ResolveImage(ctx, name, login)
		if err != nil {
			return mariposa.ImagePin{Why: err.Error()}
		}
		return pin
	}
	return mariposa.ImagePin{Why: "the node runs no containers"}
}
