// Franz-go's fake cluster (kfake): a broker implementation that shares no code with Apache Kafka or with this project.
//
// It prints its address, and ends when its standard input ends. Arguments: the release of Kafka whose API versions the broker offers, the
// topic to create, and any number of KEY=VERSION, the newest version of an API to offer instead (-1: none).
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	versions := kversion.FromString(os.Args[1])
	for _, limit := range os.Args[3:] {
		key, version, _ := strings.Cut(limit, "=")
		versions.SetMaxKeyVersion(number(key), number(version))
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.Ports(0), kfake.SeedTopics(4, os.Args[2]), kfake.MaxVersions(versions))
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	io.Copy(io.Discard, os.Stdin)
}

func number(text string) int16 {
	parsed, err := strconv.ParseInt(text, 10, 16)
	if err != nil {
		panic(err)
	}
	return int16(parsed)
}
