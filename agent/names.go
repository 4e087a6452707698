package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"mariposa"
	"mariposa/discover"
	"mariposa/driver"
	"mariposa/wire"
)

var _ driver.NameServer = (*NameServer)(nil)

// NameServer is the DNS server of a node. It knows what the control plane told it, and keeps that
// while no server can be reached.
//
// Who asks follows from where: each network of instances has a door of its own, bound to its
// bridge. Processes on the node share its loopback, where the uid that owns the socket counts. So
// nobody can ask for another project, whatever addresses it sends from.
type NameServer struct {
	options NamesOptions
	server  *discover.Server

	mu       sync.Mutex
	loopback netip.AddrPort
	doors    map[string]*doorState // by device
	owners   map[int]map[string]string
	uids     map[string]int  // of instances
	starting map[string]bool // processes that are being started, whose uids are not known yet
	news     chan struct{}   // closed when a uid is known, or a start has ended
	waiting  int             // clients that wait for that
	changed  bool            // the names are not stored yet
	logged   map[string]string
	networks map[string]string // the ids of networks by those of their attachments
}

// NamesOptions configure the DNS server of a node.
type NamesOptions struct {
	Node   string // its id
	Domain string // until the control plane says another
	// Listen is where processes on the machine ask; none if zero.
	Listen netip.AddrPort
	// Port is the one at the bridges of networks; 53 if zero.
	Port uint16
	TTL  time.Duration // of answers; discover.DefaultTTL if zero
	// Load and Store keep the names between runs. They may be nil.
	Load  func() *wire.Names
	Store func(*wire.Names)
	// Resolvers returns the name servers for all other names; those of the machine if nil.
	Resolvers func() []netip.AddrPort
}

// doorState is a door that is to be open.
type doorState struct {
	driver.Door
	gone time.Time // since when its device is not there; zero: it is
}

const (
	dnsPort      = 53
	doorInterval = 2 * time.Second  // how often doors are looked at
	doorMemory   = 10 * time.Minute // how long one is kept whose device is gone: its engine may be restarted
	storeDelay   = 5 * time.Second  // how often names are stored at most
	ownerDelay   = 2 * time.Second  // how long a client may wait until it is known which instance it is
	ownerWaits   = 16               // how many may
)

// NewNameServer returns a server that answers nobody yet.
func NewNameServer(o NamesOptions) *NameServer {
	if o.Port == 0 {
		o.Port = dnsPort
	}
	s := &NameServer{options: o, doors: map[string]*doorState{}, owners: map[int]map[string]string{}, uids: map[string]int{}, logged: map[string]string{}, networks: map[string]string{}, starting: map[string]bool{}, news: make(chan struct{})}
	s.server = &discover.Server{Zone: discover.NewZone(o.Domain), TTL: o.TTL}
	if o.Resolvers == nil {
		machine := &discover.MachineResolvers{Except: s.isOwn}
		o.Resolvers = machine.Servers
	}
	s.server.Forward = &discover.Forwarder{Upstreams: o.Resolvers}
	if o.Load != nil {
		if known := o.Load(); known != nil {
			s.server.Zone.Apply(known)
		}
	}
	return s
}

// Start listens on the loopback of the machine. Without it, instances with networks of their own
// can ask all the same.
func (s *NameServer) Start(ctx context.Context) error {
	if !s.options.Listen.IsValid() {
		return nil
	}
	at, err := s.server.Open(ctx, discover.Door{Address: s.options.Listen, Identify: s.identifyLocal})
	if err != nil {
		return fmt.Errorf("the DNS server cannot listen on %s: %w", s.options.Listen, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loopback = at
	return nil
}

// Stop ends the server.
func (s *NameServer) Stop() {
	s.server.Shutdown()
	s.store()
}

// Loopback returns the address at which processes ask.
func (s *NameServer) Loopback() netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loopback.Port() != dnsPort { // resolvers know no other
		return netip.Addr{}
	}
	return s.loopback.Addr()
}

// Open makes the server answer the instances in a network.
func (s *NameServer) Open(ctx context.Context, d driver.Door) error {
	s.mu.Lock()
	s.doors[d.Device] = &doorState{Door: d}
	s.mu.Unlock()
	return s.open(ctx, d)
}

func (s *NameServer) open(ctx context.Context, d driver.Door) error {
	who := discover.Identity{Scope: discover.Scope{Project: d.Project}, View: discover.View{Node: s.options.Node}}
	_, err := s.server.Open(ctx, discover.Door{
		Address: netip.AddrPortFrom(d.Address, s.options.Port), Device: d.Device,
		Identify: func(c discover.Client) (discover.Identity, bool) {
			id := who
			if d.Attachment != "" {
				id.Scope.Network = s.networkOf(d.Attachment)
			}
			id.Key, id.Group = d.Device+" "+c.Address.Addr().String(), d.Device
			return id, true
		},
	})
	s.note(d.Device, err)
	return err
}

// networkOf returns the id of the network that is attached to this node by an id; empty if no
// project is known that uses it.
func (s *NameServer) networkOf(attachment string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.networks[attachment]; known != "" {
		return known
	}
	for _, id := range s.server.Zone.NetworkIDs() {
		for _, c := range []mariposa.ComputeType{mariposa.ComputeDocker, mariposa.ComputeInfrastructure, mariposa.ComputeKVM} {
			if mariposa.AttachmentID(id, s.options.Node, c) == attachment {
				s.networks[attachment] = id
				return id
			}
		}
	}
	return ""
}

// note logs why a door cannot be opened, once.
func (s *NameServer) note(device string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || errors.Is(err, discover.ErrClosed) || errors.Is(err, context.Canceled) {
		delete(s.logged, device)
		return
	}
	if s.logged[device] != err.Error() {
		s.logged[device] = err.Error()
		slog.Warn("the DNS server of the node cannot answer the instances in a network; they ask the name servers of the machine", "bridge", device, "err", err)
	}
}

// Close ends the door of a network.
func (s *NameServer) Close(device string) {
	s.mu.Lock()
	d := s.doors[device]
	delete(s.doors, device)
	delete(s.logged, device)
	if d != nil {
		delete(s.networks, d.Attachment)
	}
	s.mu.Unlock()
	if d != nil {
		s.server.Close(netip.AddrPortFrom(d.Address, s.options.Port))
	}
}

// maintain opens doors again whose bridge was replaced, and stores names, until the context ends.
func (s *NameServer) maintain(ctx context.Context) {
	doors, names := time.NewTicker(doorInterval), time.NewTicker(storeDelay)
	defer doors.Stop()
	defer names.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-doors.C:
			s.checkDoors(ctx)
		case <-names.C:
			s.store()
		}
	}
}

func (s *NameServer) checkDoors(ctx context.Context) {
	s.mu.Lock()
	var there, away []driver.Door
	for device, d := range s.doors {
		_, err := net.InterfaceByName(device)
		switch {
		case err == nil:
			d.gone = time.Time{}
			there = append(there, d.Door)
			continue
		case d.gone.IsZero():
			d.gone = time.Now()
			away = append(away, d.Door)
		case time.Since(d.gone) > doorMemory:
			delete(s.doors, device)
			delete(s.logged, device)
		}
	}
	s.mu.Unlock()
	for _, d := range away {
		s.server.Close(netip.AddrPortFrom(d.Address, s.options.Port))
	}
	for _, d := range there {
		_ = s.open(ctx, d) // it was logged, and is tried again
	}
}

// isOwn reports whether an address is one at which this server answers: it must not ask itself.
func (s *NameServer) isOwn(at netip.AddrPort) bool {
	for _, own := range s.server.Addresses() {
		if own == at || own.Addr().IsUnspecified() && own.Port() == at.Port() && at.Addr().IsLoopback() {
			return true
		}
	}
	return false
}

// identifyLocal finds out which process asks. Those of root and of the agent's own user may ask for
// everything that the node knows, instances for their project, and nobody else.
func (s *NameServer) identifyLocal(c discover.Client) (discover.Identity, bool) {
	id := discover.Identity{View: discover.View{Node: s.options.Node, Local: true}}
	if !c.Address.Addr().IsLoopback() && c.Address.Addr() != c.Server.Addr() {
		return id, false
	}
	uid, err := discover.OwnerOf(c)
	if err != nil {
		return id, false
	}
	return s.identifyUser(uid, id)
}

// identifyUser returns what a user may ask for. A process may ask before its start has ended, so an
// unknown user waits for the starts in progress.
func (s *NameServer) identifyUser(uid int, id discover.Identity) (discover.Identity, bool) {
	id.Key = "uid " + strconv.Itoa(uid)
	timer := time.NewTimer(ownerDelay)
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.owners[uid]) == 0 && uid != 0 && uid != os.Geteuid() && len(s.starting) > 0 && s.waiting < ownerWaits {
		if !s.awaitNews(timer.C) {
			break
		}
	}
	for _, project := range s.owners[uid] {
		if id.Scope.Project != "" && id.Scope.Project != project {
			return id, false // instances of several projects share it
		}
		id.Scope.Project = project
	}
	if id.Scope.Project != "" {
		return id, true
	}
	id.Scope.All = uid == 0 || uid == os.Geteuid()
	return id, id.Scope.All
}

// awaitNews waits until more uids are known, and reports false if it waited long enough. The caller
// holds the lock.
func (s *NameServer) awaitNews(limit <-chan time.Time) bool {
	news := s.news
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
	}()
	select {
	case <-news:
		return true
	case <-limit:
		return false
	}
}

// setStarting notes whether a process is being started.
func (s *NameServer) setStarting(instance string, is bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting[instance] == is {
		return
	}
	if is {
		s.starting[instance] = true
		return
	}
	delete(s.starting, instance)
	close(s.news)
	s.news = make(chan struct{})
}

// setOwner notes which project the uid of a process belongs to.
func (s *NameServer) setOwner(instance string, details map[string]string, origin *mariposa.Provenance) {
	if s == nil {
		return
	}
	uid, err := strconv.Atoi(details["uid"])
	if err != nil || uid == 0 || origin == nil || origin.Project == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, known := s.uids[instance]; known && old != uid {
		s.forgetOwner(instance)
	}
	s.uids[instance] = uid
	if s.owners[uid] == nil {
		s.owners[uid] = map[string]string{}
	}
	s.owners[uid][instance] = origin.Project
}

// forgetOwner forgets the uid of an instance that is gone. The caller holds the lock.
func (s *NameServer) forgetOwner(instance string) {
	uid := s.uids[instance]
	delete(s.uids, instance)
	if delete(s.owners[uid], instance); len(s.owners[uid]) == 0 {
		delete(s.owners, uid)
	}
}

// removeOwner is forgetOwner for callers without the lock.
func (s *NameServer) removeOwner(instance string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetOwner(instance)
}

// updateOwners notes the uids of the instances that have changed.
func (n *Node) updateOwners() {
	if n.Names == nil {
		return
	}
	for id := range n.dirtyInstances {
		switch i := n.instances[id]; {
		case i == nil || i.status.State == mariposa.StateDestroyed:
			n.Names.removeOwner(id)
			n.Names.setStarting(id, false)
		default:
			n.Names.setOwner(id, i.status.Details, i.desired.Origin)
			n.Names.setStarting(id, i.starting && i.compute == mariposa.ComputeProcess)
		}
	}
}

// apply notes what the control plane says about names.
func (s *NameServer) apply(names *wire.Names) {
	if s == nil {
		return
	}
	s.server.Zone.Apply(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
}

// disconnected ends a snapshot of names that was not received completely.
func (s *NameServer) disconnected() {
	if s != nil {
		s.server.Zone.ForgetSnapshot()
	}
}

// searchDomains returns the domains in which an instance looks for short names; nil if the node
// does not know the names of its project.
func (s *NameServer) searchDomains(origin *mariposa.Provenance) []string {
	if s == nil || origin == nil {
		return nil
	}
	return s.server.Zone.SearchDomains(origin.Project)
}

// store stores the names, if they have changed.
func (s *NameServer) store() {
	s.mu.Lock()
	changed := s.changed && s.options.Store != nil
	s.changed = false
	s.mu.Unlock()
	if changed {
		s.options.Store(s.server.Zone.Names())
	}
}
