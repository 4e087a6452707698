package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) balancerCommand() *cobra.Command {
	return a.group("balancer", "Show load balancers and their members", a.balancerList(), a.balancerShow())
}

func (a *app) balancerList() *cobra.Command {
	return a.ofProjects(&cobra.Command{Use: "list", Short: "List load balancers"}, func(ctx context.Context, c *client.Client, project string) error {
		doc, err := c.Balancers(ctx, project)
		return show(a, doc, err, func() { a.printBalancers(doc.Balancers) })
	})
}

func (a *app) printBalancers(all []contract.Balancer) {
	t := newTable("BALANCER", "PROJECT", "MODE", "LISTEN", "SERVICES", "MEMBERS", "CONNECTIONS", "STATUS", "REASON?").ifEmpty("no load balancers")
	for i := range all {
		b := &all[i]
		up, open, known := 0, 0, false
		for _, m := range b.Members {
			if m.State == mariposa.MemberUp {
				up++
			}
			if m.Connections != nil {
				open, known = open+*m.Connections, true
			}
		}
		connections := "-"
		if known {
			connections = strconv.Itoa(open)
		}
		t.add(cell{b.Name, bold}, text(b.ProjectName), text(b.Mode), text(listens(b)), text(list(servicesBehind(b))),
			text(fmt.Sprintf("%d of %d up", up, len(b.Members))), text(connections), word(b.Status), text(a.suggest(b.ProjectName, "", problemOf(b))))
	}
	a.printTable(t)
}

// problemOf says what is wrong with a balancer: why it is not converged, or what its instances cannot
// use.
func problemOf(b *contract.Balancer) string {
	if b.Reason != "" {
		return b.Reason
	}
	for _, i := range b.Instances {
		if i.Problem != "" {
			return i.Name + ": " + i.Problem
		}
	}
	return ""
}

// listens describes where a balancer takes connections.
func listens(b *contract.Balancer) string {
	if b.Address != "" {
		return b.Address
	}
	var ports []string
	for _, p := range b.Listen {
		port := ":" + strconv.Itoa(p)
		if b.TLS {
			port += " (tls)"
		}
		ports = append(ports, port)
	}
	return strings.Join(ports, " ")
}

func servicesBehind(b *contract.Balancer) (names []string) {
	seen := map[string]bool{}
	for _, r := range b.Routes {
		if !seen[r.Service] {
			seen[r.Service] = true
			names = append(names, r.Service)
		}
	}
	return names
}

func (a *app) balancerShow() *cobra.Command {
	cmd := a.ofProject(&cobra.Command{
		Use: "show BALANCER", Short: "Show a load balancer with its members",
		Long:    "Show a load balancer, its routes, and for each member its state, open connections and HTTP responses.",
		Example: "  mariposa -j shop balancer show front",
		Args:    argsBetween(1, 1),
	}, func(ctx context.Context, c *client.Client, project string, args []string) error {
		doc, err := c.Balancers(ctx, project)
		if err != nil {
			return err
		}
		for i := range doc.Balancers {
			if b := &doc.Balancers[i]; b.Name == args[0] || b.ID == args[0] {
				return show(a, b, nil, func() { a.printBalancer(b) })
			}
		}
		return mariposa.Errorf(mariposa.ResourceNotFound, "the project has no load balancer %q: see `mariposa balancer list`", args[0])
	})
	cmd.ValidArgsFunction = a.wordsFrom(serviceNames)
	return cmd
}

func (a *app) printBalancer(b *contract.Balancer) {
	a.printBalancers([]contract.Balancer{*b})
	fmt.Fprintln(a.env.Stdout)
	routes := newTable("HOST", "PATH", "SERVICE", "PORT")
	for _, r := range b.Routes {
		routes.add(text(orAny(r.Host)), text(orAny(r.Path)), cell{r.Service, bold}, number(r.Port))
	}
	a.printTable(routes)
	fmt.Fprintln(a.env.Stdout)
	members := newTable("MEMBER", "ADDRESS", "STATE", "WEIGHT", "CONNECTIONS", "2XX", "4XX", "5XX", "REASON?").ifEmpty("no members: no instance behind it is up")
	for _, m := range b.Members {
		connections, ok, bad, worse := "-", "-", "-", "-"
		if m.Connections != nil {
			connections = strconv.Itoa(*m.Connections)
		}
		if r := m.Responses; r != nil {
			ok, bad, worse = strconv.FormatInt(r.Success, 10), strconv.FormatInt(r.ClientError, 10), strconv.FormatInt(r.ServerError, 10)
		}
		members.add(cell{m.InstanceName, bold}, text(dashIfEmpty(m.Address)), word(m.State), number(m.Weight), text(connections), text(ok), text(bad), text(worse), text(m.Reason))
	}
	a.printTable(members)
}

func orAny(text string) string {
	if text == "" {
		return "any"
	}
	return text
}
