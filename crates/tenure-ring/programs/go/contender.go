// Contends with the recipe of Redis' manual over redigo, as redsync does: PORT NAME MS PAUSE COUNTER. See clients.rs.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	mathrand "math/rand"
	"os"
	"strconv"
	"time"

	"github.com/gomodule/redigo/redis"
)

var release = redis.NewScript(1, `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end`)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func millis(text string) time.Duration {
	return time.Duration(must(strconv.Atoi(text))) * time.Millisecond
}

func main() {
	port, name, counter := os.Args[1], os.Args[2], os.Args[5]
	lasts, pause := millis(os.Args[3]), millis(os.Args[4])
	client := must(redis.Dial("tcp", "127.0.0.1:"+port))
	referee := must(redis.Dial("tcp", "127.0.0.1:"+port))
	fmt.Println("ready")
	must(bufio.NewReader(os.Stdin).ReadString('\n'))
	entries, violations := 0, 0
	for began := time.Now(); time.Since(began) < lasts; {
		token := make([]byte, 16)
		must(rand.Read(token))
		value := base64.StdEncoding.EncodeToString(token)
		if must(client.Do("SET", name, value, "NX", "PX", 30000)) == nil {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		if must(redis.Int(referee.Do("INCR", counter))) != 1 {
			violations++
		}
		time.Sleep(time.Millisecond + time.Duration(mathrand.Intn(4000))*time.Microsecond)
		if must(redis.Int(referee.Do("DECR", counter))) != 0 {
			violations++
		}
		if must(redis.Int(release.Do(client, name, value))) != 1 {
			panic("it was not ours any more")
		}
		entries++
		time.Sleep(pause)
	}
	fmt.Println(entries, violations)
}
