package listener

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are the addresses of proxies that are trusted to name the client of a request.
type Proxies []netip.Prefix

// ParseProxies parses addresses and networks such as 10.0.0.7 and 10.0.0.0/8.
func ParseProxies(texts []string) (Proxies, error) {
	var all Proxies
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address or a network: use a form such as 10.0.0.7 or 10.0.0.0/8", text)
		}
		if p.Bits() == 0 {
			return nil, fmt.Errorf("%q would let every client choose its address: list only the networks of your proxies", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

func (p Proxies) contains(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(p, func(one netip.Prefix) bool { return one.Contains(a) })
}

// Client returns the address of the client of a request. If a trusted proxy names another
// address, in X-Forwarded-For or Forwarded, that one is used, and so on for each trusted
// proxy from the last entry back. A proxy usually writes one of the two headers and
// passes the other on as the client sent it. So if both are present and differ, neither
// is trusted.
func (p Proxies) Client(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr // not TCP
	}
	peer := at.Addr().Unmap().WithZone("")
	if !p.contains(peer) {
		return peer.String()
	}
	plain := splitHeader(r.Header.Values("X-Forwarded-For"))
	formal := forwardedFor(r.Header.Values("Forwarded"))
	switch {
	case len(formal) == 0:
		return p.walk(peer, plain).String()
	case len(plain) == 0:
		return p.walk(peer, formal).String()
	}
	a, b := p.walk(peer, plain), p.walk(peer, formal)
	if a != b {
		return peer.String()
	}
	return a.String()
}

// Secure reports whether the client of a request uses TLS: with this server, or with a trusted
// proxy that says so.
func (p Proxies) Secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && p.contains(at.Addr()) && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// walk follows the addresses that proxies named, from the nearest back, as long as a
// trusted proxy named them.
func (p Proxies) walk(peer netip.Addr, named []string) netip.Addr {
	for _, one := range slices.Backward(named) {
		if !p.contains(peer) {
			break
		}
		a, ok := parseNode(one)
		if !ok {
			break // unknown or hidden: the proxy before is the last known address
		}
		peer = a
	}
	return peer
}

// parseNode parses an address with or without a port, IPv6 with or without brackets.
func parseNode(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return a.Unmap().WithZone(""), err == nil
}

func splitHeader(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	return strings.Split(strings.Join(values, ","), ",")
}

// forwardedFor returns the "for" of each element of a Forwarded header. An element
// without one is empty, which is not an address. A header with an open quote counts as
// one such element: the client may have opened it to hide what the proxy adds.
func forwardedFor(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	var all []string
	elements, closed := splitQuoted(strings.Join(values, ","), ',')
	if !closed {
		return []string{""}
	}
	for _, element := range elements {
		node := ""
		pairs, _ := splitQuoted(element, ';') // quotes that are closed in the header are closed in its elements
		for _, pair := range pairs {
			name, value, _ := strings.Cut(pair, "=")
			if strings.EqualFold(strings.TrimSpace(name), "for") {
				node = strings.ReplaceAll(strings.Trim(strings.TrimSpace(value), `"`), `\`, "")
			}
		}
		all = append(all, node)
	}
	return all
}

// splitQuoted splits a text, but not within quotes, and reports whether all quotes are
// closed.
func splitQuoted(text string, by byte) (parts []string, closed bool) {
	begin, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == by && !quoted:
			parts = append(parts, text[begin:i])
			begin = i + 1
		}
	}
	return append(parts, text[begin:]), !quoted
}
