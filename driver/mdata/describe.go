package mdata

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"mariposa/driver/bridge"
)

// Guest is what a guest can read of itself.
type Guest struct {
	ID, Name, Hostname string
	Image              string // its id
	Links              []bridge.Link
	Resolvers          []string
	Script             string // of the first boot
}

// Fixed returns the keys that describe a guest, as guests of Triton know them.
func (g *Guest) Fixed() map[string]string {
	all := map[string]string{"sdc:uuid": g.ID, "sdc:hostname": g.Hostname, "sdc:alias": g.Name, "sdc:image_uuid": g.Image}
	nics := []map[string]any{}
	for n, l := range g.Links {
		nics = append(nics, map[string]any{
			"interface": fmt.Sprint("net", n), "mac": l.HardwareAddress(), "ip": l.Address.Addr().String(), "ips": []string{l.Address.String()},
			"netmask": Netmask(l.Address), "gateway": l.Gateway.String(), "gateways": []string{l.Gateway.String()}, "primary": n == 0,
		})
	}
	resolvers := g.Resolvers
	if resolvers == nil {
		resolvers = []string{}
	}
	for key, value := range map[string]any{"sdc:nics": nics, "sdc:resolvers": resolvers} {
		if b, err := json.Marshal(value); err == nil { // they have texts only
			all[key] = string(b)
		}
	}
	if g.Script != "" {
		all["user-script"] = g.Script
	}
	return all
}

// Netmask returns the mask of a range of addresses.
func Netmask(p netip.Prefix) string {
	bits := ^uint32(0) << (32 - p.Bits())
	return netip.AddrFrom4([4]byte{byte(bits >> 24), byte(bits >> 16), byte(bits >> 8), byte(bits)}).String()
}
